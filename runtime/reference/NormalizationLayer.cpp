// LayerNormalization, RMSNormalization, and their gradients. Rows are the dims before `axis`, columns those from it on.
#include "runtime/reference/NormalizationKernels.h"

namespace recast::reference {
namespace {

struct Layout {
  int64_t rows = 0, columns = 0;
};

Status layoutOf(const StepSpec &spec, std::span<const int64_t> dims, Layout &layout) {
  int64_t rank = static_cast<int64_t>(dims.size()), axis = normalizeAxis(spec.attrs.getInt("axis", -1), rank);
  if (axis < 0)
    return stepError(spec, "axis is outside the rank " + std::to_string(rank));
  layout.rows = product(dims, 0, axis);
  layout.columns = product(dims, axis, rank);
  return Status::success();
}

/// Where an element of x finds its element of a parameter (scale, bias) that broadcasts to x.
class BroadcastIndex {
public:
  BroadcastIndex(std::span<const int64_t> dims, const TensorRef &parameter) : dims(dims), elems(parameter.elems()) {
    int64_t skip = static_cast<int64_t>(dims.size()) - parameter.rank();
    int64_t first = 0;
    while (first < parameter.rank() && parameter.dims[first] == 1)
      ++first;
    // The usual case: after leading ones the parameter's dims are x's last ones.
    for (int64_t d = first; d < parameter.rank(); ++d)
      trailing &= parameter.dims[d] == dims[d + skip];
    IndexArray dense = denseStrides(parameter.dims);
    for (int64_t d = 0; d < parameter.rank(); ++d)
      strides[d + skip] = parameter.dims[d] == 1 ? 0 : dense[d];
  }

  /// Whether at(i) is i % period().
  bool periodic() const { return trailing; }
  int64_t period() const { return elems; }
  /// Whether there is one element a column of rows with `columns` elements.
  bool isPerColumn(int64_t columns) const { return trailing && elems == columns; }
  int64_t at(int64_t i) const {
    if (trailing)
      return i % elems;
    int64_t offset = 0;
    for (size_t d = dims.size(); d-- > 0;) {
      offset += i % dims[d] * strides[d];
      i /= dims[d];
    }
    return offset;
  }

private:
  std::span<const int64_t> dims;
  int64_t elems;
  bool trailing = true;
  IndexArray strides{};
};

/// Mean (0 for RMS normalisation) and 1 / sqrt(variance or mean square + epsilon) of a row.
struct RowStatistics {
  double mean, inverse;
};

template <bool centered, typename T> RowStatistics statisticsOf(const T *x, int64_t count, double epsilon) {
  if constexpr (centered) {
    Moments moments = momentsOf(x, count);
    return {moments.mean, 1 / std::sqrt(moments.variance + epsilon)};
  } else {
    double sum = laneSum(count, [&](int64_t i) { return static_cast<double>(load(x[i])) * load(x[i]); });
    return {0, 1 / std::sqrt(sum / static_cast<double>(count) + epsilon)};
  }
}

/// An error unless the parameter broadcasts to x.
Status checkParameter(const StepSpec &spec, std::span<const int64_t> dims, const TensorRef &parameter) {
  int64_t skip = static_cast<int64_t>(dims.size()) - parameter.rank();
  bool fits = skip >= 0;
  for (int64_t d = 0; fits && d < parameter.rank(); ++d)
    fits = parameter.dims[d] == 1 || parameter.dims[d] == dims[d + skip];
  return fits ? Status::success() : stepError(spec, "scale or bias does not broadcast to the input");
}

/// Calls body with the types of x and of the scale: equal ones if centered, any two else.
template <bool centered, typename Body> void dispatchTypes(DType x, DType scale, Body &&body) {
  dispatchFloat(x, [&]<typename T>() {
    if constexpr (centered)
      body.template operator()<T, T>();
    else
      dispatchFloat(scale, [&]<typename V>() { body.template operator()<T, V>(); });
  });
}

template <bool centered> Status runNorm(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &scale = args.inputs[1], &y = args.outputs[0];
  Layout layout;
  if (Status status = layoutOf(spec, x.dims, layout); !status.ok())
    return status;
  bool hasBias = centered && present(args.inputs, 2);
  const TensorRef &bias = hasBias ? args.inputs[2] : scale;
  for (const TensorRef &parameter : {scale, bias})
    if (Status status = checkParameter(spec, x.dims, parameter); !status.ok())
      return status;
  BroadcastIndex scaleIndex(x.dims, scale), biasIndex(x.dims, bias);
  double epsilon = spec.attrs.getFloat("epsilon", 1e-5);
  int64_t columns = layout.columns;
  bool perColumn = scaleIndex.isPerColumn(columns) && biasIndex.isPerColumn(columns);
  dispatchTypes<centered>(x.dtype, scale.dtype, [&]<typename T, typename V>() {
    // In float only where both types are 16-bit.
    using A = std::conditional_t<sizeof(T) == 2, Arithmetic<V>, double>;
    const V *factors = scale.as<V>(), *shifts = bias.as<V>();
    parallelFor(layout.rows, grainFor(3 * columns), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T *from = x.as<T>() + row * columns;
        V *to = y.as<V>() + row * columns;
        RowStatistics s = statisticsOf<centered>(from, columns, epsilon);
        const A mean = static_cast<A>(s.mean), inverse = static_cast<A>(s.inverse);
        auto normalized = [&](int64_t i) { return (load(from[i]) - mean) * inverse; };
        if (!perColumn) {
          for (int64_t i = 0; i < columns; ++i) {
            int64_t at = row * columns + i;
            A shift = hasBias ? load(shifts[biasIndex.at(at)]) : 0;
            to[i] = roundTo<V>(normalized(i) * load(factors[scaleIndex.at(at)]) + shift);
          }
        } else if (hasBias) {
          RECAST_ELEMENTWISE_LOOP
          for (int64_t i = 0; i < columns; ++i)
            to[i] = roundTo<V>(normalized(i) * load(factors[i]) + load(shifts[i]));
        } else {
          RECAST_ELEMENTWISE_LOOP
          for (int64_t i = 0; i < columns; ++i)
            to[i] = roundTo<V>(normalized(i) * load(factors[i]));
        }
        // Mean and InvStdDev, in the type that stash_type asks for.
        for (size_t k = 1; k < 3 && centered; ++k)
          if (present(args.outputs, k))
            dispatchFloat(args.outputs[k].dtype, [&]<typename U>() {
              args.outputs[k].as<U>()[row] = roundTo<U>(k == 1 ? s.mean : s.inverse);
            });
      }
    });
  });
  return Status::success();
}

/// Columns of dscale and dbias that one pass over the rows sums up.
constexpr int64_t kBlock = 64;

/// dscale and dbias at parameter elements [begin, end), for a parameter with period() == `period`. Sums run over the
/// rows in order. T is the type of x, V that of the rest.
template <typename T, typename V>
void parameterGradients(const KernelArgs &args, const RowStatistics *statistics, int64_t columns, int64_t period,
                        int64_t begin, int64_t end) {
  const V *dy = args.inputs[0].as<V>();
  const T *x = args.inputs[1].as<T>();
  int64_t count = args.inputs[1].elems();
  for (int64_t block = begin; block < end; block += kBlock) {
    int64_t size = std::min(kBlock, end - block);
    double scaleSums[kBlock] = {}, biasSums[kBlock] = {};
    auto accumulate = [&](int64_t i, int64_t at, const RowStatistics &row) {
      scaleSums[i] += load(dy[at]) * ((load(x[at]) - row.mean) * row.inverse);
      biasSums[i] += load(dy[at]);
    };
    for (int64_t repeat = 0; repeat < count; repeat += period) {
      int64_t at = repeat + block;
      if (period == columns) {
        RowStatistics row = statistics[repeat / columns];
        for (int64_t i = 0; i < size; ++i)
          accumulate(i, at + i, row);
      } else {
        for (int64_t i = 0; i < size; ++i)
          accumulate(i, at + i, statistics[(at + i) / columns]);
      }
    }
    for (size_t k = 1; k < 3; ++k)
      if (present(args.outputs, k))
        for (int64_t i = 0; i < size; ++i)
          args.outputs[k].as<V>()[block + i] = roundTo<V>(k == 1 ? scaleSums[i] : biasSums[i]);
  }
}

/// As above for a parameter that broadcasts in another way: one pass over x, sums in `sums` (2 a parameter element).
template <typename T, typename V>
void scatteredParameterGradients(const KernelArgs &args, const RowStatistics *statistics, int64_t columns,
                                 const BroadcastIndex &index, double *sums) {
  const V *dy = args.inputs[0].as<V>();
  const T *x = args.inputs[1].as<T>();
  int64_t count = args.inputs[1].elems(), elems = index.period();
  std::fill(sums, sums + 2 * elems, 0.0);
  for (int64_t i = 0; i < count; ++i) {
    const RowStatistics &row = statistics[i / columns];
    double *sum = sums + 2 * index.at(i);
    sum[0] += load(dy[i]) * ((load(x[i]) - row.mean) * row.inverse);
    sum[1] += load(dy[i]);
  }
  for (size_t k = 1; k < 3; ++k)
    if (present(args.outputs, k))
      for (int64_t i = 0; i < elems; ++i)
        args.outputs[k].as<V>()[i] = roundTo<V>(sums[2 * i + static_cast<int64_t>(k) - 1]);
}

/// dx of one row. With g(i) = dy * scale: (g - mean(g) - xhat * mean(g * xhat)) / std, without mean(g) for RMS.
template <bool centered, typename T, typename Scaled>
void inputGradient(const T *x, T *dx, int64_t columns, const RowStatistics &s, Scaled &&g) {
  using A = Arithmetic<T>;
  double count = static_cast<double>(columns), sum = centered ? laneSum(columns, g) : 0;
  double dot = laneSum(columns, [&](int64_t i) { return g(i) * ((load(x[i]) - s.mean) * s.inverse); });
  const A center = static_cast<A>(s.mean), inverse = static_cast<A>(s.inverse);
  const A mean = static_cast<A>(sum / count), slope = static_cast<A>(s.inverse * (dot / count));
  for (int64_t i = 0; i < columns; ++i)
    dx[i] = roundTo<T>((static_cast<A>(g(i)) - mean - (load(x[i]) - center) * slope) * inverse);
}

template <bool centered> Status runNormGrad(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &dy = args.inputs[0], &x = args.inputs[1], &scale = args.inputs[2];
  Layout layout;
  if (Status status = layoutOf(spec, x.dims, layout); !status.ok())
    return status;
  if (Status status = checkParameter(spec, x.dims, scale); !status.ok())
    return status;
  BroadcastIndex index(x.dims, scale);
  double epsilon = spec.attrs.getFloat("epsilon", 1e-5);
  int64_t columns = layout.columns;
  RowStatistics *statistics = reinterpret_cast<RowStatistics *>(args.workspace.data());
  double *sums = reinterpret_cast<double *>(statistics + layout.rows);
  dispatchTypes<centered>(x.dtype, scale.dtype, [&]<typename T, typename V>() {
    const V *factors = scale.as<V>();
    parallelFor(layout.rows, grainFor(5 * columns), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        int64_t first = row * columns;
        const T *from = x.as<T>() + first;
        const V *gradient = dy.as<V>() + first;
        RowStatistics s = statistics[row] = statisticsOf<centered>(from, columns, epsilon);
        if (!present(args.outputs, 0))
          continue;
        T *dx = args.outputs[0].as<T>() + first;
        if (index.isPerColumn(columns))
          inputGradient<centered>(from, dx, columns, s, [&](int64_t i) {
            return static_cast<Arithmetic<V>>(load(gradient[i])) * load(factors[i]);
          });
        else
          inputGradient<centered>(from, dx, columns, s, [&](int64_t i) {
            return static_cast<Arithmetic<V>>(load(gradient[i])) * load(factors[index.at(first + i)]);
          });
      }
    });
    if (!index.periodic())
      return scatteredParameterGradients<T, V>(args, statistics, columns, index, sums);
    // Ranges are whole blocks, so that neighbouring threads share no cache line for long.
    int64_t period = index.period(), blocks = (period + kBlock - 1) / kBlock;
    parallelFor(blocks, grainFor(x.elems() / std::max<int64_t>(blocks, 1)), [&](int64_t begin, int64_t end) {
      parameterGradients<T, V>(args, statistics, columns, period, begin * kBlock, std::min(end * kBlock, period));
    });
  });
  return Status::success();
}

} // namespace

Status runLayerNorm(const StepSpec &spec, const KernelArgs &args) { return runNorm<true>(spec, args); }
Status runRmsNorm(const StepSpec &spec, const KernelArgs &args) { return runNorm<false>(spec, args); }
Status runLayerNormGrad(const StepSpec &spec, const KernelArgs &args) { return runNormGrad<true>(spec, args); }
Status runRmsNormGrad(const StepSpec &spec, const KernelArgs &args) { return runNormGrad<false>(spec, args); }

std::string refusesLayerNorm(const StepSpec &spec) {
  DType x = spec.inputs[0].dtype, scale = spec.inputs[1].dtype, y = spec.outputs[0].dtype;
  bool fits = spec.op == "LayerNormalization" ? x == scale && x == y : scale == y;
  return fits ? "" : "a scale of another type than the output is not supported";
}

std::string refusesLayerNormGrad(const StepSpec &spec) {
  DType dy = spec.inputs[0].dtype, x = spec.inputs[1].dtype, scale = spec.inputs[2].dtype;
  bool fits = dy == scale && (spec.op == "rms_norm_grad" || x == scale);
  for (size_t k = 0; k < spec.outputs.size(); ++k)
    fits &= !spec.outputs[k].present() || spec.outputs[k].dtype == (k ? scale : x);
  return fits ? "" : "a scale of another type than dy is not supported";
}

/// Statistics of the rows, then two sums an element of scale.
size_t layerNormGradWorkspaceBytes(const StepSpec &spec) {
  const TensorType &x = spec.inputs[1];
  int64_t axis = std::max<int64_t>(0, normalizeAxis(spec.attrs.getInt("axis", -1), x.rank()));
  int64_t rows = product(x.dims, 0, axis);
  return static_cast<size_t>(rows) * sizeof(RowStatistics) +
         static_cast<size_t>(spec.inputs[2].elems()) * 2 * sizeof(double);
}

} // namespace recast::reference
