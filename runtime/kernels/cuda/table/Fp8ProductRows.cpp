// recast.fp8_product: a MatMul or Gemm on the 8-bit numbers that its operands were dequantised from. The compiler makes
// it (runtime/compile/Fp8Products.cpp); no model holds it.
//
// Inputs: a [.., m, k], its scales, b [.., n, k], its scales, and perhaps c; output d = alpha * a bT + c, scaled.
// Scales are one f32, or a grid over tiles of the operand: attributes tile_a and tile_b have a tile's edges (0: all of
// the dimension), strides_a and strides_b the grid's strides along the dimensions of the operand.
#include "runtime/kernels/cuda/source/Fp8.h"
#include "runtime/kernels/cuda/table/Product.h"
#include <algorithm>

namespace recast::cuda {
namespace {

/// More calls of single matrices than this are slower than one of dequantised values.
constexpr size_t kMostCalls = 64;

/// One operand and its scales.
struct Scaled {
  std::vector<int64_t> dims, tile, strides;
  ScaleMode mode = ScaleMode::Scalar;
  DType scaleType = DType::F32;
  bool isOne = false;       ///< There is one scale, maybe that of a tile.
  Operand scales;           ///< As cuBLASLt wants them: of all matrices, one after the other.
  size_t bytesOfMatrix = 0; ///< Of scales. 0: all matrices have one.
  Operand of(int64_t matrix) const {
    Operand operand = scales;
    if (bytesOfMatrix) {
      operand.offset += static_cast<size_t>(matrix) * bytesOfMatrix;
      operand.bytes = bytesOfMatrix;
    }
    return operand;
  }
};

std::string readScaled(const StepSpec &spec, size_t index, const char *name, Scaled &x) {
  const TensorType &scale = spec.inputs[index + 1];
  DType type = spec.inputs[index].dtype;
  if (type != DType::F8E4M3FN && type != DType::F8E5M2)
    return unsupported(type);
  x.dims = spec.inputs[index].dims;
  x.scaleType = scale.dtype;
  if (x.dims.size() < 2)
    return "an operand is no matrix";
  x.isOne = scale.elems() == 1 && scale.dtype == DType::F32;
  x.tile = spec.attrs.getInts(std::string("tile_") + name);
  x.strides = spec.attrs.getInts(std::string("strides_") + name);
  size_t rank = x.dims.size();
  if (x.isOne && x.tile.empty())
    return "";
  if (x.tile.size() != rank || x.strides.size() != rank || rank > kTileRank)
    return "the scales do not fit the operand";
  for (size_t d = 0; d + 2 < rank && !x.isOne; ++d)
    if (x.tile[d] != 1 && x.dims[d] != 1)
      return "matrices of a stack share scales";
  int64_t row = x.tile[rank - 2], along = x.tile[rank - 1];
  bool isF32 = scale.dtype == DType::F32;
  if (scale.dtype == DType::F8E8M0 && row == 1 && along == 32)
    x.mode = ScaleMode::Vector32E8M0;
  else if (isF32 && row == 1 && along == 0)
    x.mode = ScaleMode::OuterVector;
  else if (isF32 && row == 1 && along == 128)
    x.mode = ScaleMode::Vector128;
  else if (isF32 && row == 128 && along == 128)
    x.mode = ScaleMode::Block128;
  else if (!x.isOne)
    return "cuBLASLt has no scales of " + std::string(recast::name(scale.dtype)) + " for " + std::to_string(row) +
           " x " + std::to_string(along) + " elements";
  return "";
}

/// Puts the scales where cuBLASLt looks for them. A call takes matrices of `rows` rows.
std::string arrange(Program &program, size_t input, Scaled &x, int64_t rows) {
  x.scales = cuda::input(input);
  if (x.mode == ScaleMode::Scalar)
    return "";
  size_t rank = x.dims.size();
  int64_t k = x.dims[rank - 1], along = x.tile[rank - 1], all = product(x.dims, 0, static_cast<int64_t>(rank) - 1);
  ArrangeScalesArgs args{};
  int64_t edge = x.mode == ScaleMode::Block128 ? 128 : 1;
  if (edge > 1 && rows != x.dims[rank - 2])
    return "matrices of a stack share a call, not scales";
  args.rows = (rows + edge - 1) / edge;
  args.blocks = along ? (k + along - 1) / along : 1;
  args.blockStride = x.strides[rank - 1];
  args.layout = x.mode == ScaleMode::Vector32E8M0 ? ScaleLayout::Tiles
                : x.mode == ScaleMode::Block128   ? ScaleLayout::RowsOfBlocks
                                                  : ScaleLayout::BlocksOfRows;
  args.rank = static_cast<int>(rank) - 1;
  for (size_t d = 0; d + 1 < rank; ++d) {
    args.sizes.values[d] = d + 2 == rank ? (x.dims[d] + edge - 1) / edge : x.dims[d];
    args.strides.values[d] = x.strides[d];
  }
  int64_t matrices = all / rows;
  x.bytesOfMatrix = scaleBytes(x.mode, rows, k);
  size_t bytes = x.bytesOfMatrix * static_cast<size_t>(matrices);
  if (args.layout == ScaleLayout::BlocksOfRows && (args.blocks == 1 || (matrices == 1 && args.blockStride == rows))) {
    bool isThere = true; // One row after the other, already.
    for (int64_t d = args.rank, stride = 1; d-- > 0; stride *= args.sizes.values[d])
      isThere &= args.sizes.values[d] == 1 || args.strides.values[d] == stride;
    if (isThere)
      return "";
  }
  x.scales = program.reserve(bytes);
  args.count = static_cast<int64_t>(bytes / byteSize(x.scaleType));
  LaunchOf<ArrangeScalesArgs>("arrange_scales" + sizeSuffix(x.scaleType), args)
      .read(&ArrangeScalesArgs::src, cuda::input(input))
      .write(&ArrangeScalesArgs::dst, x.scales)
      .grid(blocksFor(args.count))
      .into(program);
  return "";
}

std::string compileFp8Product(const StepSpec &spec, Program &program) {
  const TensorType &y = spec.outputs[0];
  Scaled a, b;
  for (auto [index, name, to] : {std::tuple<size_t, const char *, Scaled *>{0, "a", &a}, {2, "b", &b}})
    if (std::string refusal = readScaled(spec, index, name, *to); !refusal.empty())
      return refusal;
  if (a.isOne && b.isOne)
    a.mode = b.mode = ScaleMode::Scalar;
  MatmulArgs args{};
  args.typeA = spec.inputs[0].dtype, args.typeB = spec.inputs[2].dtype, args.typeD = y.dtype;
  args.scaleModeA = a.mode, args.scaleModeB = b.mode;
  args.k = a.dims.back(), args.n = b.dims[b.dims.size() - 2];
  args.pitchA = args.pitchB = args.k, args.pitchD = args.n;
  args.transB = true;
  args.alpha = spec.attrs.getFloat("alpha", 1);
  bool hasC = has(spec.inputs, 4);
  if (y.elems() == 0 || args.k == 0)
    return "an empty product";
  if (b.dims.back() != args.k || y.rank() < 2 || y.dims.back() != args.n)
    return "the operands do not fit";
  if (hasC && (y.rank() != 2 || spec.inputs[4].dtype != y.dtype || !broadcastC(spec, program, 4)))
    return "c does not broadcast to the output";
  args.beta = hasC ? 1 : 0;
  std::span<const int64_t> batchA(a.dims.data(), a.dims.size() - 2), batchB(b.dims.data(), b.dims.size() - 2);
  std::span<const int64_t> batch(y.dims.data(), y.dims.size() - 2);
  int64_t rows = a.dims[a.dims.size() - 2];
  ProductCalls calls = productCalls(batchA, batchB, batch, rows, a.mode != ScaleMode::Scalar);
  if (calls.first.size() > kMostCalls)
    return "it is " + std::to_string(calls.first.size()) + " products with scales of their own, more than " +
           std::to_string(kMostCalls);
  args.m = calls.m, args.batch = calls.batch;
  args.strideA = calls.stepA * rows * args.k, args.strideB = calls.stepB * args.n * args.k;
  args.strideD = rows * args.n;
  if (std::string refusal = arrange(program, 1, a, args.m); !refusal.empty())
    return refusal;
  if (std::string refusal = arrange(program, 3, b, args.n); !refusal.empty())
    return refusal;
  Operand scratch = scratchFor(program, args);
  for (const ProductCalls::First &first : calls.first) {
    Operand from = input(0), to = input(2), d = output(0);
    from.offset = static_cast<size_t>(first.a * rows * args.k);
    to.offset = static_cast<size_t>(first.b * args.n * args.k);
    d.offset = static_cast<size_t>(first.d * rows * args.n) * byteSize(y.dtype);
    LaunchOf<MatmulArgs> launch(std::string(kMatmul), args);
    launch.read(&MatmulArgs::a, from).read(&MatmulArgs::b, to);
    launch.read(&MatmulArgs::scaleA, a.of(first.a)).read(&MatmulArgs::scaleB, b.of(first.b));
    finishProduct(program, std::move(launch), args.beta, d, scratch);
  }
  return "";
}

} // namespace

std::span<const Row> fp8ProductRows() {
  static constexpr Row rows[] = {{"recast", "fp8_product", 1, 1, compileFp8Product}};
  return rows;
}

} // namespace recast::cuda
