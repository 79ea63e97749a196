// Division and remainders of integers, remainders of floats, powers of integers.
#include "runtime/kernels/cuda/source/Arithmetic.h"
#include "runtime/kernels/cuda/table/KernelTable.h"
#include "runtime/plan/DType.h"
#include <algorithm>

namespace recast::cuda {
namespace {

/// Loops over the output, from the outermost to the innermost; those that both operands walk as one are merged.
std::string setLoops(const StepSpec &spec, ArithmeticArgs &args) {
  const TensorType &a = spec.inputs[0], &b = spec.inputs[1], &y = spec.outputs[0];
  if (spec.version < 7 && a.dims != b.dims)
    return "operands broadcast as before opset 7";
  std::vector<int64_t> aDense = denseStrides(a.dims), bDense = denseStrides(b.dims);
  for (size_t d = 0; d < y.dims.size(); ++d) {
    int64_t size = y.dims[d];
    auto strideIn = [&](const TensorType &x, const std::vector<int64_t> &strides) -> int64_t {
      size_t skip = y.dims.size() - x.dims.size();
      return d < skip || x.dims[d - skip] == 1 ? 0 : strides[d - skip];
    };
    int64_t aStride = strideIn(a, aDense), bStride = strideIn(b, bDense);
    if (size == 1)
      continue;
    int last = args.rank - 1;
    if (args.rank && args.aStrides[last] == aStride * size && args.bStrides[last] == bStride * size) {
      args.sizes[last] *= size;
      args.aStrides[last] = aStride;
      args.bStrides[last] = bStride;
      continue;
    }
    if (args.rank == kMostArithmeticLoops)
      return "too many dimensions";
    args.sizes[args.rank] = size;
    args.aStrides[args.rank] = aStride;
    args.bStrides[args.rank] = bStride;
    ++args.rank;
  }
  return "";
}

bool mayBeZero(const StepSpec &spec) {
  const TensorRef &divisor = spec.constants[1];
  if (!divisor.data)
    return true;
  return dispatchAny(divisor.dtype, [&]<typename T>() {
    const T *values = divisor.as<T>();
    return std::find(values, values + divisor.elems(), T(0)) != values + divisor.elems();
  });
}

std::string launch(const StepSpec &spec, const std::string &kernel, ArithmeticArgs args, bool divides,
                   Program &program) {
  const TensorType &y = spec.outputs[0];
  args.count = y.elems();
  if (std::string refusal = setLoops(spec, args); !refusal.empty())
    return refusal;
  for (size_t i : {0, 1})
    if (spec.inputs[i].dims == y.dims && byteSize(spec.inputs[i].dtype) == byteSize(y.dtype))
      program.inPlace.push_back({0, i});
  if (!args.count)
    return "";
  LaunchOf<ArithmeticArgs> made(kernel + typeSuffix(y.dtype), args);
  made.read(&ArithmeticArgs::a, input(0)).read(&ArithmeticArgs::b, input(1)).write(&ArithmeticArgs::y, output(0));
  if (divides && mayBeZero(spec))
    made.update(&ArithmeticArgs::fault, {Operand::Fault});
  made.grid(blocksFor(args.count)).into(program);
  return "";
}

std::string compileDivide(const StepSpec &spec, Program &program) {
  DType type = spec.outputs[0].dtype;
  return isInteger(type) ? launch(spec, "divide", {}, /*divides=*/true, program) : unsupported(type);
}

std::string compileRemainder(const StepSpec &spec, Program &program) {
  DType type = spec.outputs[0].dtype;
  if (type == DType::F64 || !(isFloat(type) || isInteger(type)))
    return unsupported(type);
  ArithmeticArgs args{};
  args.truncates = spec.attrs.getInt("fmod", 0) != 0;
  return launch(spec, "remainder", args, isInteger(type), program);
}

std::string compilePower(const StepSpec &spec, Program &program) {
  DType type = spec.outputs[0].dtype, exponent = spec.inputs[1].dtype;
  if (type != DType::I32 && type != DType::I64)
    return unsupported(type);
  if (!isFloat(exponent) && exponent != DType::I32 && exponent != DType::I64)
    return "an exponent of " + unsupported(exponent);
  ArithmeticArgs args{};
  args.exponentType = static_cast<int>(exponent);
  return launch(spec, "power", args, /*divides=*/false, program);
}

} // namespace

std::span<const Row> arithmeticRows() {
  static constexpr Row rows[] = {
      {"", "Div", 1, 14, compileDivide},
      {"", "Mod", 10, 28, compileRemainder},
      {"", "Pow", 1, 15, compilePower},
  };
  return rows;
}

} // namespace recast::cuda
