#include "runtime/reference/ProductContraction.h"

namespace recast::reference {
namespace {

// One tile of y is kRows x kColumns, summed over kDepth indices at a time. Operands are packed into panels of the
// micro-kernel's shape, so that strides and types matter only while packing. The panels take 112 KiB of stack.
constexpr int64_t kRows = 32, kColumns = 64, kDepth = 128;
constexpr int64_t kMicroRows = 4, kMicroColumns = 16, kLanes = 8;

constexpr int64_t roundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

template <typename Acc> struct Panels {
  alignas(64) Acc a[kRows * kDepth];    ///< [row block][k][kMicroRows]
  alignas(64) Acc b[kColumns * kDepth]; ///< [column block][k][kMicroColumns]
  alignas(64) Acc y[kRows * kColumns];
};

/// y[4][16] += a[depth][4]^T b[depth][16], with y's rows kColumns apart.
template <typename Acc>
[[gnu::always_inline]] inline void microKernel(int64_t depth, const Acc *a, const Acc *b, Acc *y) {
  typedef Acc Vector __attribute__((vector_size(kLanes * sizeof(Acc))));
  Vector sums[kMicroRows][2];
  for (int64_t i = 0; i < kMicroRows; ++i)
    for (int64_t j = 0; j < 2; ++j)
      sums[i][j] = *reinterpret_cast<const Vector *>(y + i * kColumns + j * kLanes);
  for (int64_t k = 0; k < depth; ++k) {
    Vector b0 = *reinterpret_cast<const Vector *>(b + k * kMicroColumns);
    Vector b1 = *reinterpret_cast<const Vector *>(b + k * kMicroColumns + kLanes);
    for (int64_t i = 0; i < kMicroRows; ++i) {
      sums[i][0] += a[k * kMicroRows + i] * b0;
      sums[i][1] += a[k * kMicroRows + i] * b1;
    }
  }
  for (int64_t i = 0; i < kMicroRows; ++i)
    for (int64_t j = 0; j < 2; ++j)
      *reinterpret_cast<Vector *>(y + i * kColumns + j * kLanes) = sums[i][j];
}

template <typename Acc>
[[gnu::always_inline]] inline void multiplyPanels(Panels<Acc> &p, int64_t rows, int64_t columns, int64_t depth) {
  for (int64_t j = 0; j < columns; j += kMicroColumns)
    for (int64_t i = 0; i < rows; i += kMicroRows)
      microKernel(depth, p.a + i * kDepth, p.b + j * kDepth, p.y + i * kColumns + j);
}

template <typename Acc> void multiplyPlain(Panels<Acc> &p, int64_t rows, int64_t columns, int64_t depth) {
  multiplyPanels(p, rows, columns, depth);
}
#if defined(__x86_64__)
template <typename Acc>
__attribute__((target("avx2,fma"))) void multiplyAvx2(Panels<Acc> &p, int64_t rows, int64_t columns, int64_t depth) {
  multiplyPanels(p, rows, columns, depth);
}
template <typename Acc>
__attribute__((target("avx512f,avx512dq"))) void multiplyAvx512(Panels<Acc> &p, int64_t rows, int64_t columns,
                                                                int64_t depth) {
  multiplyPanels(p, rows, columns, depth);
}
#endif

template <typename Acc> using Multiply = void (*)(Panels<Acc> &, int64_t, int64_t, int64_t);

/// The widest form that this processor runs.
template <typename Acc> Multiply<Acc> chooseMultiply() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
    return multiplyAvx512<Acc>;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return multiplyAvx2<Acc>;
#endif
  return multiplyPlain<Acc>;
}

/// Packs [count][depth] elements at offsets outer[i] + inner[k] into blocks of `unit`; the last block ends in zeros.
template <typename T, typename Acc>
void pack(const T *from, const int64_t *outer, int64_t count, const int64_t *inner, int64_t depth, int64_t unit,
          Acc *to) {
  for (int64_t block = 0; block < count; block += unit) {
    Acc *panel = to + block * kDepth;
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t i = 0; i < unit; ++i)
        panel[k * unit + i] = block + i < count ? static_cast<Acc>(load(from[outer[block + i] + inner[k]])) : Acc(0);
  }
}

template <typename T, typename Acc> T finish(const Contraction &c, Acc sum, const T *addend) {
  if constexpr (isFloatType<T>) {
    double value = c.alpha * sum;
    return roundTo<T>(addend ? value + c.beta * static_cast<double>(load(*addend)) : value);
  } else {
    if (c.alpha == 1 && c.beta == 1)
      return static_cast<T>(addend ? sum + static_cast<Acc>(*addend) : sum);
    double value = c.alpha * static_cast<double>(static_cast<T>(sum));
    return static_cast<T>(addend ? value + c.beta * static_cast<double>(*addend) : value);
  }
}

template <typename T> struct Tile {
  const Contraction &c;
  const T *a, *b, *addend;
  T *y;
  Multiply<Accumulator<T>> multiply;

  void run(int64_t batch, int64_t row, int64_t column) const {
    using Acc = Accumulator<T>;
    Panels<Acc> panels;
    int64_t rows = std::min(kRows, c.rows.elems() - row), columns = std::min(kColumns, c.columns.elems() - column);
    int64_t usedRows = roundUp(rows, kMicroRows), usedColumns = roundUp(columns, kMicroColumns);
    int64_t rowAt[kRows], columnAt[kColumns], depthA[kDepth], depthB[kDepth];
    c.rows.offsets(row, rows, &ContractionAxis::a, rowAt);
    c.columns.offsets(column, columns, &ContractionAxis::b, columnAt);
    const T *batchA = a + batchOffset(batch, &ContractionAxis::a),
            *batchB = b + batchOffset(batch, &ContractionAxis::b);
    for (int64_t i = 0; i < usedRows; ++i)
      std::fill_n(panels.y + i * kColumns, usedColumns, Acc(0));
    for (int64_t k = 0; k < c.summed.elems(); k += kDepth) {
      int64_t depth = std::min(kDepth, c.summed.elems() - k);
      c.summed.offsets(k, depth, &ContractionAxis::a, depthA);
      c.summed.offsets(k, depth, &ContractionAxis::b, depthB);
      pack(batchA, rowAt, rows, depthA, depth, kMicroRows, panels.a);
      pack(batchB, columnAt, columns, depthB, depth, kMicroColumns, panels.b);
      multiply(panels, usedRows, usedColumns, depth);
    }
    store(panels, batch, row, rows, column, columns);
  }

private:
  int64_t batchOffset(int64_t batch, int64_t ContractionAxis::*stride) const {
    int64_t offset = 0;
    c.batch.offsets(batch, 1, stride, &offset);
    return offset;
  }

  void store(const Panels<Accumulator<T>> &panels, int64_t batch, int64_t row, int64_t rows, int64_t column,
             int64_t columns) const {
    int64_t rowY[kRows], columnY[kColumns], rowC[kRows], columnC[kColumns];
    c.rows.offsets(row, rows, &ContractionAxis::y, rowY);
    c.columns.offsets(column, columns, &ContractionAxis::y, columnY);
    c.rows.offsets(row, rows, &ContractionAxis::addend, rowC);
    c.columns.offsets(column, columns, &ContractionAxis::addend, columnC);
    T *to = y + batchOffset(batch, &ContractionAxis::y);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j)
        to[rowY[i] + columnY[j]] =
            finish<T>(c, panels.y[i * kColumns + j], addend ? addend + rowC[i] + columnC[j] : nullptr);
  }
};

} // namespace

void AxisGroup::offsets(int64_t begin, int64_t count, int64_t ContractionAxis::*stride, int64_t *out) const {
  int64_t index[kMaxAxes], at = 0, rest = begin;
  for (int d = 0; d < used; ++d) {
    index[d] = rest % axes[d].size;
    rest /= axes[d].size;
    at += index[d] * axes[d].*stride;
  }
  for (int64_t i = 0; i < count; ++i) {
    out[i] = at;
    for (int d = 0; d < used; ++d) {
      at += axes[d].*stride;
      if (++index[d] < axes[d].size)
        break;
      at -= axes[d].size * axes[d].*stride;
      index[d] = 0;
    }
  }
}

template <typename T> void contract(const Contraction &c, const T *a, const T *b, const T *addend, T *y) {
  int64_t rowTiles = (c.rows.elems() + kRows - 1) / kRows, columnTiles = (c.columns.elems() + kColumns - 1) / kColumns;
  int64_t tiles = c.batch.elems() * rowTiles * columnTiles;
  Tile<T> tile{c, a, b, addend, y, chooseMultiply<Accumulator<T>>()};
  int64_t opsPerTile = std::min(kRows, c.rows.elems()) * std::min(kColumns, c.columns.elems()) * (c.summed.elems() + 1);
  parallelFor(tiles, grainFor(opsPerTile), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      tile.run(t / (rowTiles * columnTiles), t / columnTiles % rowTiles * kRows, t % columnTiles * kColumns);
  });
}

template void contract(const Contraction &, const float *, const float *, const float *, float *);
template void contract(const Contraction &, const double *, const double *, const double *, double *);
template void contract(const Contraction &, const Half *, const Half *, const Half *, Half *);
template void contract(const Contraction &, const BFloat16 *, const BFloat16 *, const BFloat16 *, BFloat16 *);
template void contract(const Contraction &, const int32_t *, const int32_t *, const int32_t *, int32_t *);
template void contract(const Contraction &, const int64_t *, const int64_t *, const int64_t *, int64_t *);
template void contract(const Contraction &, const uint32_t *, const uint32_t *, const uint32_t *, uint32_t *);
template void contract(const Contraction &, const uint64_t *, const uint64_t *, const uint64_t *, uint64_t *);

} // namespace recast::reference
