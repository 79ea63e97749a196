// Loss scaling, clipping and norms over lists of gradients, and the state that goes with them. A list longer than
// kListTensors takes several launches.
#pragma once
#include "runtime/kernels/cuda/source/Cuda.h"

namespace recast::cuda {

inline constexpr int kListTensors = 48;
/// Elements that a block works on; it belongs to one tensor. As the partial sums of the CPU's norm.
inline constexpr int64_t kListBlock = 8192;

struct TensorList {
  Array<const void *, kListTensors> x;
  Array<void *, kListTensors> y; ///< Where a kernel writes elements.
  Array<int64_t, kListTensors> elems;
  Array<int32_t, kListTensors + 1> firstBlock; ///< Of each tensor; then the number of blocks.
  Array<uint8_t, kListTensors> xTypes, yTypes; ///< DTypes.
};

enum class ListMap : int {
  Check,   ///< Only looks for what is not finite.
  Unscale, ///< y = x * (1 / scalar), and looks.
  Scale,   ///< y = x * factor.
  Clamp,   ///< y = x within [-scalar, scalar]; NaN stays.
  Copy,    ///< y = x.
};

/// list_map. `found` gets 1 where an element is not finite.
struct ListMapArgs {
  TensorList list;
  const void *scalar;
  const double *factor;
  uint32_t *found;
  int scalarType; ///< A DType.
  ListMap map;
};

/// list_norm: partial[b] = the sum of |x|^p over block b; p may be infinity: the largest |x|, NaN where any is.
struct ListNormArgs {
  TensorList list;
  double *partial;
  double p;
};

/// norm_join: the norm of all blocks, one block. `factor` (may be null) gets min(1, limit / (norm + 1e-6)).
struct NormJoinArgs {
  const double *partial;
  const void *limit;
  void *norm;
  double *factor;
  int64_t count;
  double p;
  int limitType, normType;
};

/// list_stats: three doubles a block: the largest finite or infinite |x|, how many are not finite, how many |x| are
/// below `tiny`. stats_join: of all blocks.
struct ListStatsArgs {
  TensorList list;
  const void *tiny;
  double *partial;
  int tinyType;
};
struct StatsJoinArgs {
  const double *partial;
  void *largest, *fraction;
  int64_t *nonFinite;
  int64_t count;
  double total; ///< Elements of all tensors.
  int largestType, fractionType;
};

/// rank_maxima_T: x[i] = the largest of x[i], x[i + count], ... of all ranks. A NaN is the largest number.
struct RankMaximaArgs {
  void *x;
  int64_t count;
  int ranks;
};

/// store_flag: *flag = *found != 0.
struct FlagArgs {
  const uint32_t *found;
  bool *flag;
};

/// scale_loss: y = x * scale, both of `type`.
struct ScaleLossArgs {
  const void *x, *scale;
  void *y;
  int64_t count;
  int type, scaleType;
};

/// update_loss_scale. `hysteresisLeft` and `newHysteresisLeft` may be null.
struct LossScaleArgs {
  const bool *foundInf;
  const float *scale;
  const int64_t *goodSteps, *hysteresisLeft;
  const void *growth, *backoff, *interval, *least, *most, *hysteresis;
  float *newScale;
  int64_t *newGoodSteps, *newHysteresisLeft;
  int growthType, backoffType, intervalType, leastType, mostType, hysteresisType;
};

/// dropout_mask: mask[i] = u(i) >= ratio with the CPU's counter-based generator.
struct MaskArgs {
  const void *key, *ratio;
  bool *mask;
  int64_t count;
  uint64_t first; ///< The first counter.
  int keyType, ratioType;
};

} // namespace recast::cuda
