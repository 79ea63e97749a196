// MatMul and Gemm.
#include "runtime/kernels/cuda/source/Copy.h"
#include "runtime/kernels/cuda/table/Product.h"

namespace recast::cuda {
namespace {

constexpr int64_t kNewest = INT64_MAX;

std::string refuseTypes(const StepSpec &spec) {
  DType type = spec.inputs[0].dtype;
  if (type != DType::F32 && type != DType::F16 && type != DType::BF16)
    return unsupported(type);
  for (const TensorType &input : spec.inputs)
    if (input.present() && input.dtype != type)
      return "operands of different types";
  return "";
}

/// Large products may be split along k, which takes memory; small ones are not.
constexpr int64_t kSmallProduct = int64_t(1) << 24;
constexpr size_t kWorkspaceBytes = size_t(32) << 20;

/// Batch dimensions of one operand against those of the result: strides in matrices, 0 where it repeats.
std::vector<int64_t> batchStrides(std::span<const int64_t> dims, std::span<const int64_t> batch) {
  std::vector<int64_t> strides(batch.size());
  int64_t stride = 1;
  for (size_t d = dims.size(), at = batch.size(); d-- > 0;) {
    --at;
    strides[at] = dims[d] == 1 ? 0 : stride;
    stride *= dims[d];
  }
  return strides;
}

/// Appends a product whose operands begin at byte offsets of inputs 0 and 1 and output 0.
void append(Program &program, MatmulArgs args, size_t offsetA, size_t offsetB, size_t offsetD, Operand scratch) {
  Operand a = input(0), b = input(1), d = output(0);
  a.offset = offsetA, b.offset = offsetB, d.offset = offsetD;
  LaunchOf<MatmulArgs> launch(std::string(kMatmul), args);
  launch.read(&MatmulArgs::a, a).read(&MatmulArgs::b, b);
  finishProduct(program, std::move(launch), args.beta, d, scratch);
}

MatmulArgs argsFor(const StepSpec &spec) {
  MatmulArgs args{};
  args.typeA = spec.inputs[0].dtype, args.typeB = spec.inputs[1].dtype, args.typeD = spec.outputs[0].dtype;
  args.batch = 1, args.alpha = 1;
  args.tf32 = spec.attrs.getInt(kTf32, 0) != 0;
  return args;
}

std::string compileMatMul(const StepSpec &spec, Program &program) {
  if (std::string refusal = refuseTypes(spec); !refusal.empty())
    return refusal;
  const TensorType &y = spec.outputs[0];
  std::vector<int64_t> a = spec.inputs[0].dims, b = spec.inputs[1].dims;
  if (a.empty() || b.empty())
    return "a scalar operand";
  bool isRow = a.size() == 1, isColumn = b.size() == 1;
  if (isRow)
    a.insert(a.begin(), 1);
  if (isColumn)
    b.push_back(1);
  MatmulArgs args = argsFor(spec);
  args.m = a[a.size() - 2], args.k = a.back(), args.n = b.back();
  if (b[b.size() - 2] != args.k)
    return "the operands do not fit";
  args.pitchA = args.k, args.pitchB = args.pitchD = args.n;
  if (y.elems() == 0)
    return "";
  if (args.k == 0) { // A sum of nothing.
    fillZero(program, spec, 0);
    return "";
  }
  std::vector<int64_t> batchA(a.begin(), a.end() - 2), batchB(b.begin(), b.end() - 2);
  std::vector<int64_t> batch(y.dims.begin(), y.dims.end() - (2 - isRow - isColumn));
  ProductCalls calls = productCalls(batchA, batchB, batch, args.m, /*oneMatrixEach=*/false);
  int64_t sizeA = args.m * args.k, sizeB = args.k * args.n, sizeD = args.m * args.n;
  args.m = calls.m, args.batch = calls.batch;
  args.strideA = calls.stepA * sizeA, args.strideB = calls.stepB * sizeB, args.strideD = sizeD;
  Operand scratch = scratchFor(program, args);
  auto element = static_cast<int64_t>(byteSize(y.dtype));
  for (const ProductCalls::First &first : calls.first)
    append(program, args, static_cast<size_t>(first.a * sizeA * element),
           static_cast<size_t>(first.b * sizeB * element), static_cast<size_t>(first.d * sizeD * element), scratch);
  return "";
}

std::string compileGemm(const StepSpec &spec, Program &program) {
  if (std::string refusal = refuseTypes(spec); !refusal.empty())
    return refusal;
  const TensorType &a = spec.inputs[0], &y = spec.outputs[0];
  if (a.rank() != 2 || spec.inputs[1].rank() != 2)
    return "the operands are no matrices";
  MatmulArgs args = argsFor(spec);
  args.transA = spec.attrs.getInt("transA", 0) != 0, args.transB = spec.attrs.getInt("transB", 0) != 0;
  args.m = y.dims[0], args.n = y.dims[1], args.k = a.dims[args.transA ? 0 : 1];
  args.pitchA = a.dims[1], args.pitchB = spec.inputs[1].dims[1], args.pitchD = args.n;
  args.alpha = spec.attrs.getFloat("alpha", 1);
  double beta = spec.attrs.getFloat("beta", 1);
  bool hasC = has(spec.inputs, 2) && beta != 0;
  if (y.elems() == 0)
    return "";
  if (args.k == 0)
    return "an empty product";
  if (hasC && !broadcastC(spec, program, 2))
    return "input C does not broadcast to the output";
  args.beta = hasC ? beta : 0;
  append(program, args, 0, 0, 0, scratchFor(program, args));
  return "";
}

} // namespace

Operand scratchFor(Program &program, const MatmulArgs &args) {
  return args.m * args.n * args.k * args.batch < kSmallProduct ? Operand() : program.reserve(kWorkspaceBytes);
}

void finishProduct(Program &program, LaunchOf<MatmulArgs> launch, double beta, Operand d, Operand scratch) {
  launch.arguments().workspaceBytes = scratch.bytes;
  if (beta == 0)
    launch.write(&MatmulArgs::d, d);
  else
    launch.update(&MatmulArgs::d, d);
  if (scratch.bytes)
    launch.write(&MatmulArgs::workspace, scratch);
  launch.into(program);
}

ProductCalls productCalls(std::span<const int64_t> batchA, std::span<const int64_t> batchB,
                          std::span<const int64_t> batch, int64_t m, bool oneMatrixEach) {
  ProductCalls calls;
  calls.m = m;
  if (product(batchB, 0, static_cast<int64_t>(batchB.size())) == 1) { // One b for all rows of a.
    calls.m *= product(batchA, 0, static_cast<int64_t>(batchA.size()));
    calls.first.push_back({});
    return calls;
  }
  // The longest tail of batch dimensions along which both operands have one stride is one call; those before it are
  // calls of their own.
  std::vector<int64_t> stepsA = batchStrides(batchA, batch), stepsB = batchStrides(batchB, batch);
  size_t outer = batch.size();
  for (; outer > 0 && !oneMatrixEach; --outer) {
    int64_t size = batch[outer - 1], nextA = stepsA[outer - 1], nextB = stepsB[outer - 1];
    if (size != 1 && calls.batch != 1 && (nextA != calls.stepA * calls.batch || nextB != calls.stepB * calls.batch))
      break;
    if (size != 1 && calls.batch == 1)
      calls.stepA = nextA, calls.stepB = nextB;
    calls.batch *= size;
  }
  int64_t parts = 1; // Of a batch that is too large for a call, alike.
  while (calls.batch % parts || calls.batch / parts > kMostBatch)
    ++parts;
  calls.batch /= parts;
  int64_t count = product(batch, 0, static_cast<int64_t>(outer));
  for (int64_t call = 0; call < count; ++call) {
    ProductCalls::First first{0, 0, call * parts * calls.batch};
    for (int64_t rest = call, d = static_cast<int64_t>(outer); d-- > 0; rest /= batch[static_cast<size_t>(d)]) {
      int64_t at = rest % batch[static_cast<size_t>(d)];
      first.a += at * stepsA[static_cast<size_t>(d)];
      first.b += at * stepsB[static_cast<size_t>(d)];
    }
    for (int64_t part = 0; part < parts; ++part) {
      int64_t skipped = part * calls.batch;
      calls.first.push_back({first.a + skipped * calls.stepA, first.b + skipped * calls.stepB, first.d + skipped});
    }
  }
  return calls;
}

bool broadcastC(const StepSpec &spec, Program &program, size_t c) {
  const TensorType &from = spec.inputs[c], &y = spec.outputs[0];
  StridedCopyArgs args{};
  args.count = y.elems();
  args.rank = 2;
  std::vector<int64_t> dims = from.dims;
  while (dims.size() < 2)
    dims.insert(dims.begin(), 1);
  for (size_t d = 0; d < 2; ++d) {
    if (dims.size() != 2 || (dims[d] != 1 && dims[d] != y.dims[d]))
      return false;
    args.sizes.values[d] = y.dims[d];
    args.srcStrides.values[d] = dims[d] == 1 ? 0 : d == 0 ? dims[1] : 1;
    args.dstStrides.values[d] = d == 0 ? y.dims[1] : 1;
  }
  LaunchOf<StridedCopyArgs>("copy_strided" + sizeSuffix(y.dtype), args)
      .read(&StridedCopyArgs::src, input(c))
      .write(&StridedCopyArgs::dst, output(0))
      .grid(blocksFor(y.elems()))
      .into(program);
  return true;
}

std::span<const Row> productRows() {
  static constexpr Row rows[] = {
      {"", "MatMul", 1, kNewest, compileMatMul},
      {"", "Gemm", 1, kNewest, compileGemm},
  };
  return rows;
}

} // namespace recast::cuda
