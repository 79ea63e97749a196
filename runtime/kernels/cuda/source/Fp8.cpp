#include "runtime/kernels/cuda/source/Fp8.h"
#include "runtime/kernels/cuda/source/Math.h"
#include "runtime/kernels/cuda/source/Reduce.h"
#include "runtime/kernels/cuda/source/Values.h"

namespace recast::cuda {
RECAST_DEVICE_BEGIN
namespace {

constexpr int kThreads = 256;
constexpr float kLargestFloat = std::numeric_limits<float>::max();
constexpr uint32_t kInfinityBits = 0x7f800000;

/// |x| as bits of a float. Magnitudes are ordered as their bits, and every NaN is above infinity: it propagates.
template <typename X> uint32_t magnitudeBits(X x) {
  return std::bit_cast<uint32_t>(static_cast<float>(load(x))) & 0x7fffffff;
}
float amaxOf(uint32_t bits) {
  return bits > kInfinityBits ? std::numeric_limits<float>::quiet_NaN() : std::bit_cast<float>(bits);
}
uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

template <typename X, typename Q> void quantize(const QuantizeArgs &a) {
  float scale = *a.scale;
  uint32_t most = 0;
  for (int64_t i = gridThread(); i < a.count; i += gridThreads()) {
    X x = static_cast<const X *>(a.x)[i];
    static_cast<Q *>(a.q)[i] = Q::round(static_cast<float>(load(x)) * scale, /*saturate=*/true);
    most = larger(most, magnitudeBits(x));
  }
  if (!a.amax)
    return;
  most = reduceBlock(most, larger);
  if (threadIndex() == 0)
    atomicMax(a.amax, most);
}

void storeAmax(const AmaxArgs &a) {
  if (threadIndex() == 0)
    *a.amax = amaxOf(*a.bits);
}

int64_t tileOf(const Tiling &t, int64_t i) {
  int64_t tile = 0;
  for (int d = t.rank; d-- > 0;) {
    tile += i % t.sizes[d] / t.edges[d] * t.strides[d];
    i /= t.sizes[d];
  }
  return tile;
}

/// A warp whose elements share a tile raises its amax once.
template <typename X> void tileAmax(const TileArgs &a) {
  for (int64_t first = gridThread() - lane(); first < a.count; first += gridThreads()) {
    int64_t i = first + lane();
    uint32_t most = i < a.count ? magnitudeBits(static_cast<const X *>(a.x)[i]) : 0;
    int64_t tile = tileOf(a.tiling, i < a.count ? i : a.count - 1);
    if (ballot(tile == shuffleFrom(tile, 0)) == kAllLanes) {
      most = reduceWarp(most, larger);
      if (lane() == 0)
        atomicMax(&a.amax[tile], most);
    } else if (i < a.count) {
      atomicMax(&a.amax[tile], most);
    }
  }
}

/// Powers of two are exact in both the multiplier and its inverse.
void tileScale(const TileScaleArgs &a) {
  for (int64_t t = gridThread(); t < a.count; t += gridThreads()) {
    float amax = amaxOf(a.amax[t]), multiplier, inverse;
    if (!(amax > 0)) // Nothing to scale, or NaN, which stays NaN with any scale.
      amax = a.largest;
    int exponent = 127; // The range of E8M0.
    if (a.rule == ScaleRule::Exact) {
      multiplier = a.largest / amax;
      multiplier = multiplier > kLargestFloat ? kLargestFloat : multiplier;
      inverse = 1 / multiplier;
    } else {
      if (isFinite(amax) && a.rule == ScaleRule::MxFloor) {
        exponent = floorLog2(static_cast<double>(amax)) - floorLog2(static_cast<double>(a.largest));
      } else if (isFinite(amax)) { // ceil(log2(amax / largest))
        double ratio = static_cast<double>(amax) / static_cast<double>(a.largest);
        exponent = floorLog2(ratio);
        exponent += ratio > powerOfTwo(exponent);
      }
      exponent = exponent > 127 ? 127 : exponent < -127 ? -127 : exponent;
      multiplier = powerOfTwoFloat(-exponent);
      inverse = powerOfTwoFloat(exponent);
    }
    a.multipliers[t] = multiplier;
    if (!a.isE8M0)
      static_cast<float *>(a.inverse)[t] = inverse;
    else
      static_cast<uint8_t *>(a.inverse)[t] = static_cast<uint8_t>(exponent + 127);
  }
}

template <typename X, typename Q> void tileQuantize(const TileArgs &a) {
  for (int64_t i = gridThread(); i < a.count; i += gridThreads()) {
    float x = static_cast<float>(load(static_cast<const X *>(a.x)[i]));
    static_cast<Q *>(a.q)[i] = Q::round(x * a.multipliers[tileOf(a.tiling, i)], /*saturate=*/true);
  }
}

/// Rows of x are read and rows of both results written along memory; the tile turns in shared memory, whose rows are a
/// word longer so that a column lies in different banks.
template <typename X, typename Q> void quantizeTransposed(const QuantizeTransposedArgs &a) {
  using Tile = Array<Array<uint8_t, kTransposeTile + 4>, kTransposeTile>;
  RECAST_SHARED(Tile, tile);
  int64_t across = (a.columns + kTransposeTile - 1) / kTransposeTile;
  int64_t down = (a.rows + kTransposeTile - 1) / kTransposeTile;
  int64_t block = blockIndex(), firstColumn = block % across * kTransposeTile;
  int64_t firstRow = block / across % down * kTransposeTile, matrix = block / across / down * a.rows * a.columns;
  int x = threadIndex() % kTransposeTile;
  uint32_t most = 0;
  for (int y = threadIndex() / kTransposeTile; y < kTransposeTile; y += blockThreads() / kTransposeTile)
    if (firstRow + y < a.rows && firstColumn + x < a.columns) {
      int64_t i = matrix + (firstRow + y) * a.columns + firstColumn + x;
      X value = static_cast<const X *>(a.x)[i];
      float multiplier = a.multipliers[a.isTiled ? tileOf(a.tiling, i) : 0];
      Q q = Q::round(static_cast<float>(load(value)) * multiplier, /*saturate=*/true);
      if (a.q)
        static_cast<Q *>(a.q)[i] = q;
      tile[y][x] = std::bit_cast<uint8_t>(q);
      most = larger(most, magnitudeBits(value));
    }
  syncThreads();
  for (int y = threadIndex() / kTransposeTile; y < kTransposeTile; y += blockThreads() / kTransposeTile)
    if (firstColumn + y < a.columns && firstRow + x < a.rows)
      static_cast<uint8_t *>(a.transposed)[matrix + (firstColumn + y) * a.rows + firstRow + x] = tile[x][y];
  if (!a.amax)
    return;
  most = reduceBlock(most, larger);
  if (threadIndex() == 0)
    atomicMax(a.amax, most);
}

template <typename Q> void dequantize(const DequantizeArgs &a) {
  for (int64_t i = gridThread(); i < a.count; i += gridThreads()) {
    int64_t tile = tileOf(a.tiling, i);
    float inverse = a.isE8M0 ? decode(static_cast<const Float8E8M0 *>(a.inverse)[tile])
                             : static_cast<const float *>(a.inverse)[tile];
    a.y[i] = decode(static_cast<const Q *>(a.q)[i]) * inverse;
  }
}

template <typename T> void arrangeScales(const ArrangeScalesArgs &a) {
  int64_t across = (a.blocks + 3) / 4, down = (a.rows + 127) / 128;
  for (int64_t i = gridThread(); i < a.count; i += gridThreads()) {
    int64_t matrix, row, block;
    if (a.layout == ScaleLayout::BlocksOfRows) {
      matrix = i / (a.rows * a.blocks);
      row = i % a.rows;
      block = i / a.rows % a.blocks;
    } else if (a.layout == ScaleLayout::RowsOfBlocks) {
      matrix = i / (across * 4) / a.rows;
      row = i / (across * 4) % a.rows;
      block = i % (across * 4);
    } else {
      int64_t tile = i / 512, inTile = i % 512;
      matrix = tile / (across * down);
      row = tile / across % down * 128 + inTile / 4 % 4 * 32 + inTile / 16;
      block = tile % across * 4 + inTile % 4;
    }
    T scale{};
    if (row < a.rows && block < a.blocks)
      scale = static_cast<const T *>(
          a.src)[block * a.blockStride + offsetOf(matrix * a.rows + row, a.rank, a.sizes, a.strides)];
    static_cast<T *>(a.dst)[i] = scale;
  }
}

void updateAmax(const AmaxHistoryArgs &a) {
  if (threadIndex())
    return;
  float scale = *a.scale, amax = *a.amax, peak = 0;
  if (*a.skip) {
    for (int64_t i = 0; i < a.length; ++i)
      a.newHistory[i] = a.history[i];
    *a.newScale = scale;
    return;
  }
  bool sawNaN = false;
  for (int64_t i = 0; i < (a.takesLargest ? a.length : 1); ++i) {
    float value = i == 0 ? amax : a.history[i];
    sawNaN |= value != value && !a.ignoresNaN;
    peak = value > peak ? value : peak;
  }
  // In order: the new history may lie where the old one does.
  a.newHistory[0] = 0;
  for (int64_t i = 1; i + 1 < a.length; ++i)
    a.newHistory[i] = a.history[i + 1];
  if (a.length > 1)
    a.newHistory[a.length - 1] = amax;
  if (peak > 0 && isFinite(peak) && !sawNaN) {
    scale = a.largest / peak / a.margin;
    scale = scale > kLargestFloat ? kLargestFloat : scale;
  }
  *a.newScale = scale;
}

} // namespace
RECAST_DEVICE_END

#define RECAST_FROM(X, Type)                                                                                           \
  RECAST_KERNEL(quantize_fp8_##X##_f8e4m3fn, kThreads, QuantizeArgs, quantize<Type, Float8E4M3FN>)                     \
  RECAST_KERNEL(quantize_fp8_##X##_f8e5m2, kThreads, QuantizeArgs, quantize<Type, Float8E5M2>)                         \
  RECAST_KERNEL(quantize_transposed_##X##_f8e4m3fn, kThreads, QuantizeTransposedArgs,                                  \
                quantizeTransposed<Type, Float8E4M3FN>)                                                                \
  RECAST_KERNEL(quantize_transposed_##X##_f8e5m2, kThreads, QuantizeTransposedArgs,                                    \
                quantizeTransposed<Type, Float8E5M2>)                                                                  \
  RECAST_KERNEL(tile_amax_##X, kThreads, TileArgs, tileAmax<Type>)                                                     \
  RECAST_KERNEL(tile_quantize_##X##_f8e4m3fn, kThreads, TileArgs, tileQuantize<Type, Float8E4M3FN>)                    \
  RECAST_KERNEL(tile_quantize_##X##_f8e5m2, kThreads, TileArgs, tileQuantize<Type, Float8E5M2>)

// clang-format off
RECAST_KERNELS(fp8Kernels,
  RECAST_FROM(f32, float)
  RECAST_FROM(f16, Half)
  RECAST_FROM(bf16, BFloat16)
  RECAST_KERNEL(store_amax, kThreads, AmaxArgs, storeAmax)
  RECAST_KERNEL(tile_scale, kThreads, TileScaleArgs, tileScale)
  RECAST_KERNEL(dequantize_fp8_f8e4m3fn, kThreads, DequantizeArgs, dequantize<Float8E4M3FN>)
  RECAST_KERNEL(dequantize_fp8_f8e5m2, kThreads, DequantizeArgs, dequantize<Float8E5M2>)
  RECAST_KERNEL(arrange_scales_1, kThreads, ArrangeScalesArgs, arrangeScales<uint8_t>)
  RECAST_KERNEL(arrange_scales_4, kThreads, ArrangeScalesArgs, arrangeScales<uint32_t>)
  RECAST_KERNEL(update_amax, kThreads, AmaxHistoryArgs, updateAmax))
// clang-format on

} // namespace recast::cuda
