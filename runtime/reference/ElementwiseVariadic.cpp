// Sum, Mean, Max and Min over any number of tensors that broadcast to the output.
#include "runtime/reference/ElementwiseLoops.h"

namespace recast::reference {
namespace {

/// Outputs that are accumulated at a time, on the stack.
constexpr int64_t kTile = 512;

/// The stride is a constant where it is 1, so that the loop vectorises.
template <int64_t fixedStride, typename T, typename A, typename Init, typename Step>
void accumulate(const T *x, A *acc, int64_t n, bool isFirst, Init init, Step step, int64_t stride = fixedStride) {
  stride = fixedStride ? fixedStride : stride;
  if (isFirst)
    for (int64_t i = 0; i < n; ++i)
      acc[i] = init(load(x[i * stride]));
  else
    for (int64_t i = 0; i < n; ++i)
      acc[i] = step(acc[i], load(x[i * stride]));
}

/// y = finish(x0 ⊕ x1 ⊕ ...): accumulators of type A begin as init(x0) and take each further input by step(acc, x).
template <typename T, typename A, typename Init, typename Step, typename Finish>
void mapVariadic(const KernelArgs &args, Init init, Step step, Finish finish) {
  const TensorRef &y = args.outputs[0];
  parallelFor(y.elems(), grainFor(static_cast<int64_t>(args.inputs.size())), [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; tile += kTile) {
      int64_t tileEnd = std::min(end, tile + kTile);
      A acc[kTile];
      for (size_t k = 0; k < args.inputs.size(); ++k) {
        StridedLoop<1> loop(y.dims);
        loop.broadcast(0, args.inputs[k].dims);
        loop.coalesce();
        A *to = acc;
        loop.walk(tile, tileEnd, [&](const std::array<int64_t, 1> &at, int64_t n) {
          const T *x = args.inputs[k].as<T>() + at[0];
          if (loop.inner(0) == 1)
            accumulate<1>(x, to, n, k == 0, init, step);
          else
            accumulate<0>(x, to, n, k == 0, init, step, loop.inner(0));
          to += n;
        });
      }
      for (int64_t i = tile; i < tileEnd; ++i)
        y.as<T>()[i] = roundTo<T>(finish(acc[i - tile]));
    }
  });
}

template <bool isMean> Status runSum(const StepSpec &spec, const KernelArgs &args) {
  double count = isMean ? static_cast<double>(args.inputs.size()) : 1;
  dispatchFloat(args.outputs[0].dtype, [&]<typename T>() {
    mapVariadic<T, double>(
        args, [](double x) { return x; }, [](double acc, double x) { return acc + x; },
        [count](double acc) { return isMean ? acc / count : acc; });
  });
  return Status::success();
}

/// NaN in any input gives NaN.
template <bool isMax> Status runExtreme(const StepSpec &spec, const KernelArgs &args) {
  dispatchNumeric(args.outputs[0].dtype, [&]<typename T>() {
    using C = Compute<T>;
    auto same = [](C x) { return x; };
    mapVariadic<T, C>(args, same, [](C acc, C x) { return (isMax ? x > acc : x < acc) || x != x ? x : acc; }, same);
  });
  return Status::success();
}

} // namespace

std::span<const Entry> elementwiseVariadicEntries() {
  static const Entry entries[] = {
      {"", "Sum", 1, 13, runSum<false>, nullptr, refuseInputs<allowsFloat>, elementwise},
      {"", "Mean", 1, 13, runSum<true>, nullptr, refuseInputs<allowsFloat>, elementwise},
      {"", "Max", 1, 13, runExtreme<true>, nullptr, refuseInputs<allowsNumeric>, elementwise},
      {"", "Min", 1, 13, runExtreme<false>, nullptr, refuseInputs<allowsNumeric>, elementwise},
  };
  return entries;
}

} // namespace recast::reference
