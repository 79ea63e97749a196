#include "runtime/kernels/cuda/source/Scaling.h"
#include "runtime/kernels/cuda/source/Math.h"
#include "runtime/kernels/cuda/source/Reduce.h"
#include "runtime/kernels/cuda/source/Values.h"
RECAST_DEVICE_BEGIN
#include "runtime/reference/CounterRandom.h"
RECAST_DEVICE_END

namespace recast::cuda {
RECAST_DEVICE_BEGIN
namespace {

constexpr int kThreads = 256;

/// The block's part of its tensor.
struct Part {
  int tensor;
  int64_t begin, end;
};
Part partOf(const TensorList &list) {
  int64_t block = blockIndex();
  int k = 0;
  while (list.firstBlock[k + 1] <= block)
    ++k;
  int64_t begin = (block - list.firstBlock[k]) * kListBlock, end = begin + kListBlock;
  return {k, begin, end < list.elems[k] ? end : list.elems[k]};
}

template <typename X, typename Y> bool mapPart(const ListMapArgs &a, Part part) {
  using C = Compute<X>;
  const X *x = static_cast<const X *>(a.list.x[part.tensor]);
  Y *y = static_cast<Y *>(a.list.y[part.tensor]);
  C by = 0;
  if (a.map == ListMap::Unscale) // As torch's GradScaler: the reciprocal in double, rounded once.
    by = static_cast<C>(1 / loadScalar(a.scalar, static_cast<DType>(a.scalarType)));
  else if (a.map == ListMap::Scale)
    by = static_cast<C>(*a.factor);
  else if (a.map == ListMap::Clamp)
    by = static_cast<C>(loadScalar(a.scalar, static_cast<DType>(a.scalarType)));
  bool isBad = false;
  for (int64_t i = part.begin + threadIndex(); i < part.end; i += kThreads) {
    C g = load(x[i]);
    isBad |= !isFinite(g);
    if (a.map == ListMap::Copy)
      y[i] = roundTo<Y>(g);
    else if (a.map == ListMap::Clamp)
      y[i] = roundTo<Y>(g < -by ? -by : g > by ? by : g);
    else if (a.map != ListMap::Check)
      y[i] = roundTo<Y>(g * by);
  }
  return isBad;
}

void listMap(const ListMapArgs &a) {
  Part part = partOf(a.list);
  bool isBad = false;
  auto x = static_cast<DType>(a.list.xTypes[part.tensor]), y = static_cast<DType>(a.list.yTypes[part.tensor]);
  dispatchFloat(x, [&]<typename X>() {
    if (x == y)
      isBad = mapPart<X, X>(a, part);
    else
      dispatchFloat(y, [&]<typename Y>() { isBad = mapPart<X, Y>(a, part); });
  });
  if (a.found && isBad)
    atomicOr(a.found, 1);
}

template <typename T> void rankMaxima(const RankMaximaArgs &a) {
  T *x = static_cast<T *>(a.x);
  for (int64_t i = gridThread(); i < a.count; i += gridThreads()) {
    T most = x[i];
    for (int rank = 1; rank < a.ranks; ++rank)
      most = joinMax(most, x[i + rank * a.count]);
    x[i] = most;
  }
}

double powered(double x, double p) {
  return p == 2 ? x * x : p == 1 || !isFinite(p) ? absolute(x) : power(absolute(x), p);
}

void listNorm(const ListNormArgs &a) {
  Part part = partOf(a.list);
  bool isMaximum = !isFinite(a.p);
  double sum = 0;
  dispatchFloat(static_cast<DType>(a.list.xTypes[part.tensor]), [&]<typename T>() {
    const T *x = static_cast<const T *>(a.list.x[part.tensor]);
    for (int64_t i = part.begin + threadIndex(); i < part.end; i += kThreads) {
      double value = powered(static_cast<double>(load(x[i])), a.p);
      sum = isMaximum ? joinMax(sum, value) : sum + value;
    }
  });
  sum = isMaximum ? reduceBlock(sum, joinMax<double>) : sumBlock(sum);
  if (threadIndex() == 0)
    a.partial[blockIndex()] = sum;
}

void normJoin(const NormJoinArgs &a) {
  bool isMaximum = !isFinite(a.p);
  double sum = 0;
  for (int64_t i = threadIndex(); i < a.count; i += kThreads)
    sum = isMaximum ? joinMax(sum, a.partial[i]) : sum + a.partial[i];
  sum = isMaximum ? reduceBlock(sum, joinMax<double>) : sumBlock(sum);
  if (threadIndex())
    return;
  double norm = isMaximum || a.p == 1 ? sum : a.p == 2 ? squareRoot(sum) : power(sum, 1 / a.p);
  storeScalar(a.norm, static_cast<DType>(a.normType), norm);
  if (a.factor) { // A norm of NaN makes every gradient NaN, as torch.nn.utils.clip_grad_norm_ does.
    double factor = loadScalar(a.limit, static_cast<DType>(a.limitType)) / (norm + 1e-6);
    *a.factor = factor > 1 ? 1 : factor;
  }
}

void listStats(const ListStatsArgs &a) {
  Part part = partOf(a.list);
  double tiny = loadScalar(a.tiny, static_cast<DType>(a.tinyType)), most = 0, bad = 0, small = 0;
  dispatchFloat(static_cast<DType>(a.list.xTypes[part.tensor]), [&]<typename T>() {
    const T *x = static_cast<const T *>(a.list.x[part.tensor]);
    for (int64_t i = part.begin + threadIndex(); i < part.end; i += kThreads) {
      double size = absolute(static_cast<double>(load(x[i])));
      most = size > most ? size : most;
      bad += !isFinite(size);
      small += size < tiny;
    }
  });
  most = reduceBlock(most, joinMax<double>), bad = sumBlock(bad), small = sumBlock(small);
  if (threadIndex())
    return;
  double *to = a.partial + 3 * blockIndex();
  to[0] = most, to[1] = bad, to[2] = small;
}

void statsJoin(const StatsJoinArgs &a) {
  double most = 0, bad = 0, small = 0;
  for (int64_t i = threadIndex(); i < a.count; i += kThreads) {
    most = joinMax(most, a.partial[3 * i]);
    bad += a.partial[3 * i + 1];
    small += a.partial[3 * i + 2];
  }
  most = reduceBlock(most, joinMax<double>), bad = sumBlock(bad), small = sumBlock(small);
  if (threadIndex())
    return;
  storeScalar(a.largest, static_cast<DType>(a.largestType), most);
  *a.nonFinite = static_cast<int64_t>(bad);
  storeScalar(a.fraction, static_cast<DType>(a.fractionType), small / a.total);
}

void storeFlag(const FlagArgs &a) {
  if (threadIndex() == 0)
    *a.flag = *a.found != 0;
}

void scaleLoss(const ScaleLossArgs &a) {
  double scale = loadScalar(a.scale, static_cast<DType>(a.scaleType));
  dispatchFloat(static_cast<DType>(a.type), [&]<typename T>() {
    using C = Compute<T>;
    for (int64_t i = gridThread(); i < a.count; i += gridThreads())
      static_cast<T *>(a.y)[i] = roundTo<T>(load(static_cast<const T *>(a.x)[i]) * static_cast<C>(scale));
  });
}

/// As torch's GradScaler: growth that would overflow is not taken; bounds hold for what changes.
void updateLossScale(const LossScaleArgs &a) {
  if (threadIndex())
    return;
  float scale = *a.scale;
  int64_t goodSteps = *a.goodSteps, left = a.hysteresisLeft ? *a.hysteresisLeft : 1;
  auto number = [](const void *at, int type) { return loadScalar(at, static_cast<DType>(type)); };
  if (*a.foundInf) {
    left = left > 1 ? left - 1 : 0;
    if (left == 0) {
      float less = static_cast<float>(static_cast<double>(scale) * number(a.backoff, a.backoffType));
      float least = static_cast<float>(number(a.least, a.leastType));
      scale = less < least ? least : less;
    }
    goodSteps = 0;
  } else if (++goodSteps == static_cast<int64_t>(number(a.interval, a.intervalType))) {
    float grown = static_cast<float>(static_cast<double>(scale) * number(a.growth, a.growthType));
    float most = static_cast<float>(number(a.most, a.mostType));
    if (isFinite(grown))
      scale = most < grown ? most : grown;
    left = a.hysteresisLeft ? static_cast<int64_t>(number(a.hysteresis, a.hysteresisType)) : left;
    goodSteps = 0;
  }
  *a.newScale = scale;
  *a.newGoodSteps = goodSteps;
  if (a.newHysteresisLeft)
    *a.newHysteresisLeft = left;
}

void dropoutMask(const MaskArgs &a) {
  uint64_t seed = static_cast<DType>(a.keyType) == DType::I64
                      ? static_cast<uint64_t>(*static_cast<const int64_t *>(a.key))
                      : static_cast<uint64_t>(static_cast<int64_t>(*static_cast<const int32_t *>(a.key)));
  uint64_t key = reference::squaresKey(seed);
  uint64_t threshold = reference::dropThreshold(loadScalar(a.ratio, static_cast<DType>(a.ratioType)));
  for (int64_t i = gridThread(); i < a.count; i += gridThreads())
    a.mask[i] = reference::squares32(a.first + static_cast<uint64_t>(i), key) >= threshold;
}

} // namespace
RECAST_DEVICE_END

// clang-format off
RECAST_KERNELS(scalingKernels,
  RECAST_KERNEL(rank_maxima_f32, kThreads, RankMaximaArgs, rankMaxima<float>)
  RECAST_KERNEL(rank_maxima_f64, kThreads, RankMaximaArgs, rankMaxima<double>)
  RECAST_KERNEL(list_map, kThreads, ListMapArgs, listMap)
  RECAST_KERNEL(list_norm, kThreads, ListNormArgs, listNorm)
  RECAST_KERNEL(norm_join, kThreads, NormJoinArgs, normJoin)
  RECAST_KERNEL(list_stats, kThreads, ListStatsArgs, listStats)
  RECAST_KERNEL(stats_join, kThreads, StatsJoinArgs, statsJoin)
  RECAST_KERNEL(store_flag, kThreads, FlagArgs, storeFlag)
  RECAST_KERNEL(scale_loss, kThreads, ScaleLossArgs, scaleLoss)
  RECAST_KERNEL(update_loss_scale, kThreads, LossScaleArgs, updateLossScale)
  RECAST_KERNEL(dropout_mask, kThreads, MaskArgs, dropoutMask))
// clang-format on

} // namespace recast::cuda
