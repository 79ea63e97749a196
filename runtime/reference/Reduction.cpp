// The Reduce* operators. Floats are accumulated in double and rounded once; integers modulo 2^64.
#include "runtime/reference/ElementwiseLoops.h"
#include "runtime/reference/ReductionLoops.h"

namespace recast::reference {

// The other tables of the family.
std::span<const Entry> softmaxEntries();
std::span<const Entry> orderEntries();

namespace {

/// The axes to reduce: the attribute `axes`, or input 1 in the versions that have it.
Status readAxes(const StepSpec &spec, const KernelArgs &args, AxisSet &axes) {
  int64_t rank = args.inputs[0].rank();
  std::span<const int64_t> listed = spec.attrs.intsView("axes");
  if (present(args.inputs, 1))
    listed = {args.inputs[1].as<const int64_t>(), static_cast<size_t>(args.inputs[1].elems())};
  for (int64_t axis : listed) {
    int64_t d = normalizeAxis(axis, rank);
    if (d < 0)
      return stepError(spec, "axis " + std::to_string(axis) + " is outside the input's rank " + std::to_string(rank));
    axes.set(static_cast<size_t>(d));
  }
  if (listed.empty() && !spec.attrs.getInt("noop_with_empty_axes", 0))
    for (int64_t d = 0; d < rank; ++d)
      axes.set(static_cast<size_t>(d));
  return Status::success();
}

/// A finished reduction in the output's type.
template <typename T> T finished(double value) {
  if constexpr (isFloatType<T>)
    return roundTo<T>(value);
  else
    return toInteger<T>(value);
}
/// An integer accumulator as the number that it stands for.
template <typename T, typename A> double asDouble(A acc) {
  if constexpr (std::is_signed_v<T> && std::is_integral_v<A>)
    return static_cast<double>(static_cast<int64_t>(acc));
  else
    return static_cast<double>(acc);
}
template <typename T> auto magnitude(T value) {
  if constexpr (std::is_unsigned_v<T>)
    return value;
  else if constexpr (std::is_integral_v<T>)
    return value < 0 ? uint64_t(0) - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  else
    return std::fabs(value);
}

enum class Term { Value, Magnitude, Square };
enum class Result { Sum, Mean, Root, Log };

/// finish(sum of term(x)): all operators but the extremes, the product and LogSumExp.
template <Term term, Result result> Status runSum(const StepSpec &spec, const KernelArgs &args) {
  AxisSet axes;
  if (Status status = readAxes(spec, args, axes); !status.ok())
    return status;
  ReduceSpace space(args.inputs[0].dims, axes);
  int64_t count = space.reduced.count();
  dispatchNumeric(args.outputs[0].dtype, [&]<typename T>() {
    using A = Accumulator<T>;
    auto step = [](A acc, auto value) {
      A x = static_cast<A>(value);
      return acc + (term == Term::Value ? x : term == Term::Square ? x * x : static_cast<A>(magnitude(value)));
    };
    auto finish = [count](A acc) {
      if constexpr (result == Result::Sum)
        return roundTo<T>(acc);
      double sum = asDouble<T>(acc);
      return finished<T>(result == Result::Mean   ? sum / static_cast<double>(count)
                         : result == Result::Root ? std::sqrt(sum)
                                                  : std::log(sum));
    };
    reduce(args.inputs[0].as<T>(), space, args.outputs[0].as<T>(), A(0), step, std::plus<A>(), finish);
  });
  return Status::success();
}

Status runProd(const StepSpec &spec, const KernelArgs &args) {
  AxisSet axes;
  if (Status status = readAxes(spec, args, axes); !status.ok())
    return status;
  ReduceSpace space(args.inputs[0].dims, axes);
  dispatchNumeric(args.outputs[0].dtype, [&]<typename T>() {
    using A = Accumulator<T>;
    auto multiply = [](A acc, auto value) { return acc * static_cast<A>(value); };
    reduce(args.inputs[0].as<T>(), space, args.outputs[0].as<T>(), A(1), multiply, multiply,
           [](A acc) { return roundTo<T>(acc); });
  });
  return Status::success();
}

/// NaN among the values gives NaN. The extreme of nothing is the type's other end, infinite for floats.
template <bool isMax> Status runExtreme(const StepSpec &spec, const KernelArgs &args) {
  AxisSet axes;
  if (Status status = readAxes(spec, args, axes); !status.ok())
    return status;
  ReduceSpace space(args.inputs[0].dims, axes);
  dispatchAny(args.outputs[0].dtype, [&]<typename T>() {
    using C = Compute<T>;
    using Limits = std::numeric_limits<C>;
    C low = Limits::has_infinity ? static_cast<C>(-Limits::infinity()) : Limits::lowest();
    C high = Limits::has_infinity ? Limits::infinity() : Limits::max();
    auto better = [](C acc, C x) { return (isMax ? x > acc : x < acc) || x != x ? x : acc; };
    reduce(args.inputs[0].as<T>(), space, args.outputs[0].as<T>(), isMax ? low : high, better, better,
           [](C acc) { return roundTo<T>(acc); });
  });
  return Status::success();
}

/// log(sum(exp(x - max))) + max. The sum of a set is kept with its maximum, so one pass does.
Status runLogSumExp(const StepSpec &spec, const KernelArgs &args) {
  AxisSet axes;
  if (Status status = readAxes(spec, args, axes); !status.ok())
    return status;
  ReduceSpace space(args.inputs[0].dims, axes);
  struct Partial {
    double max = -std::numeric_limits<double>::infinity(), sum = 0; ///< sum of exp(x - max).
  };
  auto merge = [](Partial a, Partial b) {
    if (std::isnan(a.max) || b.sum == 0)
      return a;
    if (a.max < b.max || std::isnan(b.max))
      std::swap(a, b);
    // Equal infinities would give NaN as their difference.
    a.sum += b.max == a.max ? b.sum : b.sum * std::exp(b.max - a.max);
    return a;
  };
  dispatchNumeric(args.outputs[0].dtype, [&]<typename T>() {
    auto step = [merge](Partial acc, auto value) { return merge(acc, Partial{static_cast<double>(value), 1}); };
    reduce(args.inputs[0].as<T>(), space, args.outputs[0].as<T>(), Partial{}, step, merge,
           [](Partial acc) { return finished<T>(acc.sum == 0 ? acc.max : acc.max + std::log(acc.sum)); });
  });
  return Status::success();
}

template <bool (*allows)(DType)> std::string refuse(const StepSpec &spec) {
  if (!allows(spec.inputs[0].dtype))
    return std::string(name(spec.inputs[0].dtype)) + " is not supported";
  return present(spec.inputs, 1) && spec.inputs[1].dtype != DType::I64 ? "axes must be i64" : "";
}

constexpr Entry entry(std::string_view op, int64_t last, Status (*run)(const StepSpec &, const KernelArgs &),
                      std::string (*refuses)(const StepSpec &) = refuse<allowsNumeric>) {
  return {"", op, 1, last, run, nullptr, refuses, nullptr, unlessConstant};
}

} // namespace

std::span<const Entry> reductionEntries() {
  static const std::vector<Entry> entries = [] {
    std::vector<Entry> all = {
        entry("ReduceSum", 13, runSum<Term::Value, Result::Sum>),
        entry("ReduceMean", 18, runSum<Term::Value, Result::Mean>),
        entry("ReduceL1", 18, runSum<Term::Magnitude, Result::Sum>),
        entry("ReduceL2", 18, runSum<Term::Square, Result::Root>),
        entry("ReduceSumSquare", 18, runSum<Term::Square, Result::Sum>),
        entry("ReduceLogSum", 28, runSum<Term::Value, Result::Log>),
        entry("ReduceLogSumExp", 28, runLogSumExp),
        entry("ReduceProd", 18, runProd),
        entry("ReduceMax", 20, runExtreme<true>, refuse<allowsAny>),
        entry("ReduceMin", 20, runExtreme<false>, refuse<allowsAny>),
    };
    for (std::span<const Entry> part : {softmaxEntries(), orderEntries()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return entries;
}

} // namespace recast::reference
