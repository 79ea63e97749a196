// ArgMax, ArgMin, TopK, CumSum, CumProd.
#include "runtime/kernels/cuda/source/Order.h"
#include "runtime/kernels/cuda/table/KernelTable.h"

namespace recast::cuda {
namespace {

std::string refuseType(DType type) {
  return isFloat(type) || type == DType::I32 || type == DType::I64 ? "" : unsupported(type);
}

std::string viewOf(const TensorType &x, int64_t given, AxisView &view) {
  int64_t axis = normalizeAxis(given, x.rank());
  if (axis < 0)
    return "axis " + std::to_string(given) + " is outside the rank " + std::to_string(x.rank());
  view = {product(x.dims, 0, axis), x.dims[static_cast<size_t>(axis)], product(x.dims, axis + 1, x.rank())};
  return "";
}

template <bool isMax> std::string compileArg(const StepSpec &spec, Program &program) {
  const TensorType &x = spec.inputs[0];
  ArgArgs args{};
  if (std::string refusal = refuseType(x.dtype); !refusal.empty())
    return refusal;
  if (std::string refusal = viewOf(x, spec.attrs.getInt("axis", 0), args.view); !refusal.empty())
    return refusal;
  if (args.view.n == 0 && spec.outputs[0].elems())
    return "the axis is empty";
  args.isMax = isMax;
  args.takesLast = spec.attrs.getInt("select_last_index", 0) != 0;
  if (spec.outputs[0].elems())
    LaunchOf<ArgArgs>("arg" + typeSuffix(x.dtype), args)
        .read(&ArgArgs::x, input(0))
        .write(&ArgArgs::y, output(0))
        .grid(blocksFor(spec.outputs[0].elems() * 32))
        .into(program);
  return "";
}

std::string compileTopK(const StepSpec &spec, Program &program) {
  const TensorType &x = spec.inputs[0];
  TopKArgs args{};
  if (std::string refusal = refuseType(x.dtype); !refusal.empty())
    return refusal;
  int64_t axis = spec.attrs.getInt("axis", -1);
  if (std::string refusal = viewOf(x, axis, args.view); !refusal.empty())
    return refusal;
  const TensorType &y = has(spec.outputs, 0) ? spec.outputs[0] : spec.outputs[1];
  args.k = y.dims[static_cast<size_t>(normalizeAxis(axis, x.rank()))];
  if (args.k > args.view.n)
    return "k is larger than the axis";
  args.largest = spec.attrs.getInt("largest", 1) != 0;
  if (y.elems() == 0)
    return "";
  LaunchOf<TopKArgs> launch("top_k" + typeSuffix(x.dtype), args);
  launch.read(&TopKArgs::x, input(0));
  if (has(spec.outputs, 0))
    launch.write(&TopKArgs::values, output(0));
  if (has(spec.outputs, 1))
    launch.write(&TopKArgs::indices, output(1));
  launch.grid(std::min<int64_t>(args.view.outer * args.view.inner, 8192), threadsToReduce(args.view.n)).into(program);
  return "";
}

template <bool isSum> std::string compileCumulative(const StepSpec &spec, Program &program) {
  const TensorType &x = spec.inputs[0];
  CumulativeArgs args{};
  if (std::string refusal = refuseType(x.dtype); !refusal.empty())
    return refusal;
  std::vector<int64_t> axis;
  if (!constantInts(spec, 1, axis) || axis.size() != 1)
    return "the axis depends on data";
  if (std::string refusal = viewOf(x, axis[0], args.view); !refusal.empty())
    return refusal;
  args.isSum = isSum;
  args.exclusive = spec.attrs.getInt("exclusive", 0) != 0;
  args.reverse = spec.attrs.getInt("reverse", 0) != 0;
  program.inPlace = {{0, 0}};
  if (x.elems())
    LaunchOf<CumulativeArgs>("cumulative" + typeSuffix(x.dtype), args)
        .read(&CumulativeArgs::x, input(0))
        .write(&CumulativeArgs::y, output(0))
        .grid(blocksFor(args.view.outer * args.view.inner))
        .into(program);
  return "";
}

} // namespace

std::span<const Row> orderRows() {
  static constexpr Row rows[] = {
      {"", "ArgMax", 1, 13, compileArg<true>},
      {"", "ArgMin", 1, 13, compileArg<false>},
      {"", "TopK", 1, 24, compileTopK},
      {"", "CumSum", 11, 14, compileCumulative<true>},
      {"", "CumProd", 26, 26, compileCumulative<false>},
  };
  return rows;
}

} // namespace recast::cuda
