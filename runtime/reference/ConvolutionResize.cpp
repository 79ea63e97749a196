// Resize and Upsample. Interpolation is separable: each axis gets a table of (index, weight) pairs for each of its
// outputs, and an output element sums over the product of its axes' pairs.
#include "runtime/reference/ConvolutionWindow.h"
#include "runtime/reference/Loops.h"

namespace recast::reference {
namespace {

struct Tap {
  int64_t index; ///< Clamped into the input; kExtrapolated where the output takes extrapolation_value.
  double weight;
};
constexpr int64_t kExtrapolated = -1;

enum class Mode { Nearest, Linear, Cubic };

Mode modeOf(const StepSpec &spec) {
  std::string_view mode = spec.attrs.stringView("mode", "nearest");
  return mode == "cubic" ? Mode::Cubic : mode == "nearest" ? Mode::Nearest : Mode::Linear;
}

/// Input positions that one output may weigh, were the axis not scaled down.
int64_t plainTaps(Mode mode) { return mode == Mode::Cubic ? 4 : 2; }

bool antialiased(const StepSpec &spec) { return spec.attrs.getInt("antialias", 0) != 0; }

bool hasElems(std::span<const TensorRef> tensors, size_t i) { return present(tensors, i) && tensors[i].elems() > 0; }

/// Before Resize 11 there is one coordinate rule, and nearest rounds down.
bool isOldForm(const StepSpec &spec) { return spec.op == "Upsample" || spec.version < 11; }

/// How one axis is resized.
struct AxisScale {
  double scale = 1, roiBegin = 0, roiEnd = 1;
};

/// The position of `axis` in the lists that the attribute `axes` shortens, or -1 if it is not resized.
int64_t listPosition(const StepSpec &spec, int64_t axis) {
  auto axes = spec.attrs.intsView("axes");
  if (axes.empty())
    return axis;
  for (size_t i = 0; i < axes.size(); ++i)
    if (normalizeAxis(axes[i], spec.inputs[0].rank()) == axis)
      return static_cast<int64_t>(i);
  return -1;
}

AxisScale axisScale(const StepSpec &spec, const KernelArgs &args, int64_t axis) {
  AxisScale result;
  int64_t at = listPosition(spec, axis);
  if (at < 0)
    return result;
  auto dims = [&](int64_t d) { return static_cast<double>(spec.inputs[0].dims[static_cast<size_t>(d)]); };
  if (spec.op == "Upsample" && spec.version < 9) {
    const auto *entry = [&]() -> const std::vector<float> * {
      for (const auto &[key, value] : spec.attrs)
        if (key == "scales")
          return std::get_if<std::vector<float>>(&value);
      return nullptr;
    }();
    result.scale = entry ? static_cast<double>((*entry)[static_cast<size_t>(at)]) : 1;
    return result;
  }
  size_t scalesInput = isOldForm(spec) ? 1 : 2;
  if (hasElems(args.inputs, scalesInput)) {
    result.scale = loadDouble(args.inputs[scalesInput], at);
  } else {
    const TensorRef &sizes = args.inputs[3];
    std::string_view policy = spec.attrs.stringView("keep_aspect_ratio_policy", "stretch");
    result.scale = static_cast<double>(loadIndex(sizes, at)) / dims(axis);
    for (int64_t d = 0; policy != "stretch" && d < spec.inputs[0].rank(); ++d)
      if (int64_t other = listPosition(spec, d); other >= 0) {
        double scale = static_cast<double>(loadIndex(sizes, other)) / dims(d);
        result.scale = policy == "not_larger" ? std::min(result.scale, scale) : std::max(result.scale, scale);
      }
  }
  if (!isOldForm(spec) && hasElems(args.inputs, 1)) {
    int64_t half = args.inputs[1].elems() / 2;
    result.roiBegin = loadDouble(args.inputs[1], at);
    result.roiEnd = loadDouble(args.inputs[1], half + at);
  }
  return result;
}

/// coordinate_transformation_mode: the input coordinate of output `o` (formulas from the operator's text).
double coordinate(const StepSpec &spec, const AxisScale &axis, int64_t o, int64_t in, int64_t out, bool &outside) {
  std::string_view mode = isOldForm(spec) ? std::string_view("asymmetric")
                                          : spec.attrs.stringView("coordinate_transformation_mode", "half_pixel");
  double x = static_cast<double>(o), length = static_cast<double>(in), resized = axis.scale * length;
  if (mode == "align_corners")
    return resized == 1 ? 0 : x * (length - 1) / (resized - 1);
  if (mode == "asymmetric")
    return x / axis.scale;
  if (mode == "tf_half_pixel_for_nn")
    return (x + 0.5) / axis.scale;
  if (mode == "pytorch_half_pixel" && resized == 1)
    return -0.5;
  if (mode == "half_pixel_symmetric")
    return length / 2 * (1 - static_cast<double>(out) / resized) + (x + 0.5) / axis.scale - 0.5;
  if (mode == "tf_crop_and_resize") {
    double extent = (axis.roiEnd - axis.roiBegin) * (length - 1);
    double at = axis.roiBegin * (length - 1) + (resized == 1 ? extent / 2 : x * extent / (resized - 1));
    outside = at < 0 || at > length - 1;
    return at;
  }
  return (x + 0.5) / axis.scale - 0.5;
}

/// The filter at a distance from the sampling point. Cubic: equation (4) of Keys 1981.
double filter(Mode mode, double distance, double a) {
  double x = std::fabs(distance);
  if (mode == Mode::Linear)
    return std::max(0.0, 1 - x);
  if (x <= 1)
    return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

int64_t nearest(const StepSpec &spec, double x) {
  std::string_view rounding =
      isOldForm(spec) ? std::string_view("floor") : spec.attrs.stringView("nearest_mode", "round_prefer_floor");
  if (rounding == "floor")
    return static_cast<int64_t>(std::floor(x));
  if (rounding == "ceil")
    return static_cast<int64_t>(std::ceil(x));
  return static_cast<int64_t>(rounding == "round_prefer_ceil" ? std::floor(x + 0.5) : std::ceil(x - 0.5));
}

/// Positions that each output of the axis weighs: an upper bound that needs shapes only. Scaling down with antialias
/// stretches the filter by 1/scale; out = round(in * scale) bounds that from shapes.
int64_t tapBound(const StepSpec &spec, size_t axis) {
  Mode mode = modeOf(spec);
  int64_t in = spec.inputs[0].dims[axis], out = spec.outputs[0].dims[axis];
  if (!antialiased(spec) || mode == Mode::Nearest || out >= in)
    return plainTaps(mode);
  double support = static_cast<double>(plainTaps(mode)) / 2;
  return 2 * static_cast<int64_t>(std::ceil(support * static_cast<double>(in) / (static_cast<double>(out) - 0.5)));
}

/// Fills the taps of output `o`; returns how many. They are at most `bound`.
int64_t fillTaps(const StepSpec &spec, const AxisScale &axis, int64_t o, int64_t in, int64_t out, int64_t bound,
                 Tap *taps) {
  Mode mode = modeOf(spec);
  bool outside = false;
  double x = coordinate(spec, axis, o, in, out, outside);
  auto clamp = [&](int64_t i) { return std::clamp<int64_t>(i, 0, in - 1); };
  if (outside) {
    taps[0] = {kExtrapolated, 0};
    return 1;
  }
  if (mode == Mode::Nearest) {
    taps[0] = {clamp(nearest(spec, x)), 1};
    return 1;
  }
  double stretch = antialiased(spec) ? std::min(axis.scale, 1.0) : 1;
  double support = static_cast<double>(plainTaps(mode)) / 2;
  int64_t count = std::min(bound, 2 * static_cast<int64_t>(std::ceil(support / stretch)));
  int64_t first = static_cast<int64_t>(std::floor(x)) + 1 - count / 2;
  bool exclude = spec.attrs.getInt("exclude_outside", 0) != 0;
  double a = spec.attrs.getFloat("cubic_coeff_a", -0.75), sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    int64_t at = first + i;
    double weight = exclude && (at < 0 || at >= in) ? 0 : filter(mode, (static_cast<double>(at) - x) * stretch, a);
    taps[i] = {clamp(at), weight};
    sum += weight;
  }
  for (int64_t i = 0; (exclude || stretch != 1) && sum != 0 && i < count; ++i)
    taps[i].weight /= sum;
  return count;
}

/// The tables of all axes.
struct Tables {
  int rank = 0;
  IndexArray bound{}, stride{};
  std::array<Tap *, kMaxRank> taps{};
  std::array<int64_t *, kMaxRank> counts{};
};

template <typename T> double sample(const Tables &t, const T *x, const IndexArray &index, int axis, int64_t at) {
  if (axis == t.rank)
    return static_cast<double>(load(x[at]));
  const Tap *taps = t.taps[axis] + index[axis] * t.bound[axis];
  double sum = 0;
  for (int64_t i = 0; i < t.counts[axis][index[axis]]; ++i)
    if (taps[i].weight != 0)
      sum += taps[i].weight * sample(t, x, index, axis + 1, at + taps[i].index * t.stride[axis]);
  return sum;
}

} // namespace

size_t resizeWorkspaceBytes(const StepSpec &spec) {
  size_t bytes = 0;
  for (size_t d = 0; d < spec.inputs[0].dims.size(); ++d)
    bytes += static_cast<size_t>(spec.outputs[0].dims[d]) *
             (static_cast<size_t>(tapBound(spec, d)) * sizeof(Tap) + sizeof(int64_t));
  return bytes;
}

std::string refuseResize(const StepSpec &spec) {
  DType type = spec.inputs[0].dtype;
  if (!isFloat(type) && (modeOf(spec) != Mode::Nearest || byteSize(type) > 4))
    return std::string(name(type)) + " is not supported";
  if (!isFloat(type) && byteSize(type) == 0)
    return std::string(name(type)) + " is not supported";
  for (int64_t d : spec.inputs[0].dims)
    if (d == 0)
      return "an empty input";
  return "";
}

Status runResize(const StepSpec &spec, const KernelArgs &args) {
  const TensorType &in = spec.inputs[0], &out = spec.outputs[0];
  Tables tables;
  tables.rank = static_cast<int>(in.rank());
  tables.stride = denseStrides(in.dims);
  std::byte *memory = args.workspace.data();
  for (int d = 0; d < tables.rank; ++d) {
    int64_t inSize = in.dims[d], outSize = out.dims[d];
    tables.bound[d] = tapBound(spec, static_cast<size_t>(d));
    tables.taps[d] = reinterpret_cast<Tap *>(memory);
    memory += static_cast<size_t>(outSize * tables.bound[d]) * sizeof(Tap);
    tables.counts[d] = reinterpret_cast<int64_t *>(memory);
    memory += static_cast<size_t>(outSize) * sizeof(int64_t);
    AxisScale scale = axisScale(spec, args, d);
    bool identity = scale.scale == 1 && inSize == outSize && scale.roiBegin == 0 && scale.roiEnd == 1;
    for (int64_t o = 0; o < outSize; ++o) {
      Tap *taps = tables.taps[d] + o * tables.bound[d];
      taps[0] = {o, 1};
      tables.counts[d][o] = identity ? 1 : fillTaps(spec, scale, o, inSize, outSize, tables.bound[d], taps);
    }
  }
  double extrapolation = spec.attrs.getFloat("extrapolation_value", 0);
  dispatchAny(in.dtype, [&]<typename T>() {
    const T *x = args.inputs[0].as<T>();
    T *y = args.outputs[0].as<T>();
    int64_t taps = 1;
    for (int d = 0; d < tables.rank; ++d)
      taps *= in.dims[d] == out.dims[d] ? 1 : tables.bound[d];
    parallelFor(out.elems(), grainFor(8 * taps), [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) {
        IndexArray index{};
        bool extrapolated = false;
        int64_t rest = o;
        for (int d = tables.rank; d-- > 0; rest /= out.dims[d]) {
          index[d] = rest % out.dims[d];
          extrapolated |= tables.taps[d][index[d] * tables.bound[d]].index == kExtrapolated;
        }
        y[o] = roundTo<T>(extrapolated ? extrapolation : sample(tables, x, index, 0, 0));
      }
    });
  });
  return Status::success();
}

} // namespace recast::reference
