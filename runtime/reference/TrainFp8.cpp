// fp8 training: quantize_fp8, quantize_fp8_tiles, dequantize_fp8, update_amax. docs/fp8.md has the formulas.
#include "runtime/reference/TrainKernels.h"
#include <atomic>
#include <bit>

namespace recast::reference {
namespace {

constexpr float kLargestFloat = std::numeric_limits<float>::max();
constexpr uint32_t kInfinityBits = 0x7f800000;

float largestOf(DType type) { return type == DType::F8E5M2 ? Float8E5M2::largest() : Float8E4M3FN::largest(); }

/// As dispatchFloat8 over the two types that are trained in.
template <typename Body> void dispatchTrained(DType type, Body &&body) {
  if (type == DType::F8E5M2)
    body.template operator()<Float8E5M2>();
  else
    body.template operator()<Float8E4M3FN>();
}

/// |x| as bits of a float. Magnitudes are ordered as their bits, and every NaN is above infinity: it propagates.
template <typename X> uint32_t magnitudeBits(X x) {
  return std::bit_cast<uint32_t>(static_cast<float>(load(x))) & 0x7fffffff;
}
template <typename X> uint32_t largestMagnitude(const X *x, int64_t n) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; ++i)
    most = std::max(most, magnitudeBits(x[i]));
  return most;
}

void raise(uint32_t &target, uint32_t value) {
  std::atomic_ref<uint32_t> most(target);
  uint32_t seen = most.load(std::memory_order_relaxed);
  while (seen < value && !most.compare_exchange_weak(seen, value, std::memory_order_relaxed))
    ;
}

float amaxOf(uint32_t bits) {
  return bits > kInfinityBits ? std::numeric_limits<float>::quiet_NaN() : std::bit_cast<float>(bits);
}

/// Element i has the scale scales[i * step], step 0 or 1.
template <typename Y, typename X> void quantize(const X *x, int64_t n, const float *scales, int64_t step, Y *q) {
  if (step == 0)
    for (int64_t i = 0; i < n; ++i)
      q[i] = Y::round(static_cast<float>(load(x[i])) * *scales, /*saturate=*/true);
  else
    for (int64_t i = 0; i < n; ++i)
      q[i] = Y::round(static_cast<float>(load(x[i])) * scales[i], /*saturate=*/true);
}

// (x, scale) -> (q, amax)
Status runQuantizeFp8(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &q = args.outputs[0];
  float scale = *args.inputs[1].as<float>();
  uint32_t most = 0;
  dispatchFloat(x.dtype, [&]<typename X>() {
    dispatchTrained(q.dtype, [&]<typename Y>() {
      parallelFor(x.elems(), kGrain, [&](int64_t begin, int64_t end) {
        quantize(x.as<X>() + begin, end - begin, &scale, 0, q.as<Y>() + begin);
        raise(most, largestMagnitude(x.as<X>() + begin, end - begin));
      });
    });
  });
  if (present(args.outputs, 1))
    *args.outputs[1].as<float>() = amaxOf(most);
  return Status::success();
}

// Tiles -------------------------------------------------------------------------------------------------------------

/// A tensor cut into tiles, each with one scale. `tile` holds the size of a tile along each dimension, 0 for the whole
/// dimension; the last tile of a dimension may be smaller.
class Tiling {
public:
  Tiling(std::span<const int64_t> dims, std::span<const int64_t> tile) : rank(static_cast<int>(dims.size())) {
    int64_t stride = 1;
    for (int d = rank; d-- > 0;) {
      size[d] = dims[static_cast<size_t>(d)];
      edge[d] = tile[static_cast<size_t>(d)] ? tile[static_cast<size_t>(d)] : std::max<int64_t>(size[d], 1);
      strides[d] = stride;
      stride *= (size[d] + edge[d] - 1) / edge[d];
    }
    count = stride;
  }
  int64_t tiles() const { return count; }
  int64_t columns() const { return rank ? size[rank - 1] : 1; }

  /// Calls run(first element, elements, tile, step): element i of the run lies in tile `tile + i * step`, step 0 or 1.
  template <typename Run> void forEachRun(int64_t elems, Run run) const {
    int64_t width = columns(), piece = rank ? edge[rank - 1] : 1;
    parallelFor(width ? elems / width : 0, grainFor(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        int64_t tile = 0, rest = row;
        for (int d = rank - 1; d-- > 0;) {
          tile += rest % size[d] / edge[d] * strides[d];
          rest /= size[d];
        }
        if (piece == 1)
          run(row * width, width, tile, 1);
        else
          for (int64_t at = 0; at < width; at += piece)
            run(row * width + at, std::min(piece, width - at), tile++, 0);
      }
    });
  }

private:
  int rank;
  int64_t count = 1;
  IndexArray size{}, edge{}, strides{};
};

enum class Rule { Exact, PowerOfTwo, MxFloor };

Rule ruleOf(const StepSpec &spec) {
  std::string_view rule = spec.attrs.stringView("rule", "exact");
  return rule == "pow2" ? Rule::PowerOfTwo : rule == "mx_floor" ? Rule::MxFloor : Rule::Exact;
}

/// floor(log2(x)) for x > 0.
int floorLog2(double x) {
  int exponent;
  std::frexp(x, &exponent);
  return exponent - 1;
}

/// The multiplier of a tile and its inverse. Powers of two are exact in both.
struct TileScale {
  float multiplier, inverse;

  static TileScale of(float amax, float largest, Rule rule) {
    if (!(amax > 0)) // Nothing to scale, or NaN, which stays NaN with any scale.
      amax = largest;
    if (rule == Rule::Exact) {
      float multiplier = std::min(largest / amax, kLargestFloat);
      return {multiplier, 1 / multiplier};
    }
    constexpr int kMost = 127; // The range of E8M0.
    int exponent = kMost;
    if (std::isfinite(amax) && rule == Rule::MxFloor)
      exponent = floorLog2(amax) - floorLog2(largest);
    else if (std::isfinite(amax)) {
      double ratio = static_cast<double>(amax) / static_cast<double>(largest);
      int mantissaExponent;
      exponent = std::frexp(ratio, &mantissaExponent) == 0.5 ? mantissaExponent - 1 : mantissaExponent; // ceil(log2)
    }
    exponent = std::clamp(exponent, -kMost, kMost);
    return {std::ldexp(1.0f, -exponent), std::ldexp(1.0f, exponent)};
  }
};

std::span<const int64_t> tileOf(const StepSpec &spec) { return spec.attrs.intsView("tile"); }

/// Per tile, first its amax as bits, then its multiplier.
size_t tilesWorkspace(const StepSpec &spec) { return static_cast<size_t>(spec.outputs[1].elems()) * sizeof(float); }

// (x) -> (q, scale_inv): scales from the values of this very tensor.
Status runQuantizeTiles(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &q = args.outputs[0], &scale = args.outputs[1];
  Tiling tiling(x.dims, tileOf(spec));
  auto *amax = reinterpret_cast<uint32_t *>(args.workspace.data());
  auto *multipliers = reinterpret_cast<float *>(args.workspace.data());
  std::fill_n(amax, tiling.tiles(), 0);
  Rule rule = ruleOf(spec);
  float largest = largestOf(q.dtype);
  dispatchFloat(x.dtype, [&]<typename X>() {
    tiling.forEachRun(x.elems(), [&](int64_t at, int64_t n, int64_t tile, int64_t step) {
      if (step == 0)
        raise(amax[tile], largestMagnitude(x.as<X>() + at, n));
      else
        for (int64_t i = 0; i < n; ++i)
          raise(amax[tile + i], magnitudeBits(x.as<X>()[at + i]));
    });
    for (int64_t t = 0; t < tiling.tiles(); ++t) {
      TileScale s = TileScale::of(amaxOf(amax[t]), largest, rule);
      multipliers[t] = s.multiplier;
      if (scale.dtype == DType::F8E8M0)
        scale.as<Float8E8M0>()[t] = Float8E8M0(s.inverse);
      else
        scale.as<float>()[t] = s.inverse;
    }
    dispatchTrained(q.dtype, [&]<typename Y>() {
      tiling.forEachRun(x.elems(), [&](int64_t at, int64_t n, int64_t tile, int64_t step) {
        quantize(x.as<X>() + at, n, multipliers + tile, step, q.as<Y>() + at);
      });
    });
  });
  return Status::success();
}

// (q, scale_inv) -> y = q * scale_inv
Status runDequantizeTiles(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &q = args.inputs[0], &scale = args.inputs[1], &y = args.outputs[0];
  dispatchTrained(q.dtype, [&]<typename Q>() {
    const Q *in = q.as<Q>();
    float *out = y.as<float>();
    auto multiply = [&](const auto *inverse) {
      Tiling(q.dims, tileOf(spec)).forEachRun(q.elems(), [&](int64_t at, int64_t n, int64_t tile, int64_t step) {
        float one = static_cast<float>(inverse[tile]);
        for (int64_t i = 0; i < n; ++i)
          out[at + i] = static_cast<float>(in[at + i]) * (step ? static_cast<float>(inverse[tile + i]) : one);
      });
    };
    if (scale.dtype == DType::F8E8M0)
      multiply(scale.as<Float8E8M0>());
    else
      multiply(scale.as<float>());
  });
  return Status::success();
}

/// Inputs: skip amax_history scale amax. Entry 0 of the history belongs to the current step and is 0 between steps; the
/// last entry is that of the step before. As Transformer Engine's delayed scaling.
Status runUpdateAmax(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &history = args.inputs[1], &nextHistory = args.outputs[0];
  const float *seen = history.as<float>();
  float scale = *args.inputs[2].as<float>(), amax = *args.inputs[3].as<float>();
  int64_t length = history.elems();
  if (*args.inputs[0].as<bool>()) {
    copyTensor(history, nextHistory);
    *args.outputs[1].as<float>() = scale;
    return Status::success();
  }
  bool ignoresNaN = spec.attrs.stringView("nan", "propagate") == "ignore", sawNaN = false;
  float peak = 0;
  auto take = [&](float value) {
    sawNaN |= std::isnan(value) && !ignoresNaN;
    peak = value > peak ? value : peak;
  };
  take(amax);
  if (spec.attrs.stringView("algorithm", "max") == "max")
    std::for_each(seen + 1, seen + length, take);
  float *next = nextHistory.as<float>();
  next[0] = 0;
  if (length > 1) {
    std::copy(seen + 2, seen + length, next + 1);
    next[length - 1] = amax;
  }
  if (peak > 0 && std::isfinite(peak) && !sawNaN) {
    auto largest = largestOf(static_cast<DType>(spec.attrs.getInt("to", 0)));
    float margin = std::ldexp(1.0f, static_cast<int>(spec.attrs.getInt("margin", 0)));
    scale = std::min(largest / peak / margin, kLargestFloat);
  }
  *args.outputs[1].as<float>() = scale;
  return Status::success();
}

bool isTrained(DType type) { return type == DType::F8E4M3FN || type == DType::F8E5M2; }

std::string refuseQuantizeFp8(const StepSpec &spec) {
  if (!isFloat(spec.inputs[0].dtype) || !isTrained(spec.outputs[0].dtype))
    return unsupported(isFloat(spec.inputs[0].dtype) ? spec.outputs[0].dtype : spec.inputs[0].dtype);
  return spec.inputs.size() == 2 && spec.inputs[1].dtype == DType::F32 ? "" : "it takes x and a scale of f32";
}
std::string refuseTile(const StepSpec &spec, const TensorType &x, const TensorType &scale) {
  if (scale.dtype != DType::F32 && scale.dtype != DType::F8E8M0)
    return unsupported(scale.dtype);
  std::span<const int64_t> tile = tileOf(spec);
  if (tile.size() != x.dims.size() || std::any_of(tile.begin(), tile.end(), [](int64_t t) { return t < 0; }))
    return "attribute tile does not fit the rank";
  return Tiling(x.dims, tile).tiles() == scale.elems() ? "" : "attribute tile does not fit the scale";
}
std::string refuseQuantizeTiles(const StepSpec &spec) {
  if (!isFloat(spec.inputs[0].dtype) || !isTrained(spec.outputs[0].dtype))
    return unsupported(isFloat(spec.inputs[0].dtype) ? spec.outputs[0].dtype : spec.inputs[0].dtype);
  return refuseTile(spec, spec.inputs[0], spec.outputs[1]);
}
std::string refuseDequantizeTiles(const StepSpec &spec) {
  if (!isTrained(spec.inputs[0].dtype) || spec.outputs[0].dtype != DType::F32)
    return unsupported(isTrained(spec.inputs[0].dtype) ? spec.outputs[0].dtype : spec.inputs[0].dtype);
  return refuseTile(spec, spec.inputs[0], spec.inputs[1]);
}
std::string refuseUpdateAmax(const StepSpec &spec) {
  bool expected = spec.inputs.size() == 4 && spec.inputs[0].dtype == DType::Bool &&
                  spec.inputs[1].dtype == DType::F32 && spec.inputs[1].elems() > 0 &&
                  spec.inputs[2].dtype == DType::F32 && spec.inputs[3].dtype == DType::F32;
  return expected ? "" : "it takes skip bool, amax_history f32 (not empty), scale f32 and amax f32";
}

} // namespace

std::span<const Entry> fp8Entries() {
  static const Entry entries[] = {
      {"recast", "quantize_fp8", 1, 1, runQuantizeFp8, nullptr, refuseQuantizeFp8},
      {"recast", "quantize_fp8_tiles", 1, 1, runQuantizeTiles, tilesWorkspace, refuseQuantizeTiles},
      {"recast", "dequantize_fp8", 1, 1, runDequantizeTiles, nullptr, refuseDequantizeTiles},
      {"recast", "update_amax", 1, 1, runUpdateAmax, nullptr, refuseUpdateAmax, pairs<InPlace{0, 1}, InPlace{1, 2}>},
  };
  return entries;
}

} // namespace recast::reference
