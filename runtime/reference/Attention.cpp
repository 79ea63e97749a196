// Attention (versions 23 to 25) and RotaryEmbedding.
#include "runtime/reference/Loops.h"
#include "runtime/reference/Reference.h"
#include "runtime/reference/ShapeCopy.h"
#include <limits>

namespace recast::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A tensor of heads, [batch, heads, length, size], which as 3-D input is stored as [batch, length, heads * size].
struct Heads {
  int64_t batch = 0, heads = 0, length = 0, size = 0;
  int64_t batchStride = 0, headStride = 0, rowStride = 0; ///< Elements of a row are contiguous.

  Heads() = default;
  Heads(std::span<const int64_t> dims, int64_t headCount) {
    batch = dims[0];
    if (dims.size() == 4) {
      heads = dims[1], length = dims[2], size = dims[3];
      rowStride = size, headStride = length * size;
    } else {
      heads = headCount, length = dims[1], size = heads > 0 ? dims[2] / heads : 0;
      rowStride = dims[2], headStride = size;
    }
    batchStride = heads * length * size;
  }
  int64_t at(int64_t b, int64_t head, int64_t row) const {
    return b * batchStride + head * headStride + row * rowStride;
  }
};

/// The sizes of an Attention step. Keys (and values) are the past ones, if any, followed by the current ones.
struct Problem {
  Heads q, k, v, y;
  int64_t past = 0, total = 0; ///< Keys in the cache, and all keys.

  int64_t units() const { return q.batch * q.heads; }
  /// Doubles of workspace for one head of one batch: a row of scores, one of bias, and a row of the output.
  int64_t unitElems() const { return 2 * total + v.size; }
};

/// From dims alone, so that it serves StepSpec and KernelArgs.
template <typename Tensor> Problem makeProblem(const StepSpec &spec, std::span<const Tensor> inputs) {
  int64_t qHeads = spec.attrs.getInt("q_num_heads", 0), kvHeads = spec.attrs.getInt("kv_num_heads", 0);
  Problem p;
  p.q = Heads(inputs[0].dims, qHeads);
  p.k = Heads(inputs[1].dims, kvHeads);
  p.v = Heads(inputs[2].dims, kvHeads);
  p.past = present(inputs, 4) ? inputs[4].dims[2] : 0;
  p.total = p.past + p.k.length;
  p.y = p.q;
  p.y.size = p.v.size;
  p.y.batchStride = p.q.heads * p.q.length * p.v.size;
  p.y.rowStride = inputs[0].dims.size() == 4 ? p.v.size : p.q.heads * p.v.size;
  p.y.headStride = inputs[0].dims.size() == 4 ? p.q.length * p.v.size : p.v.size;
  return p;
}

std::string refusesAttention(const StepSpec &spec) {
  for (size_t i = 0; i < 3; ++i)
    if (spec.inputs[i].rank() != spec.inputs[0].rank() || (spec.inputs[i].rank() != 3 && spec.inputs[i].rank() != 4))
      return "Q, K and V need three or four dimensions each";
  if (spec.inputs[0].rank() == 3 &&
      (spec.attrs.getInt("q_num_heads", 0) < 1 || spec.attrs.getInt("kv_num_heads", 0) < 1))
    return "inputs of three dimensions need q_num_heads and kv_num_heads";
  bool pastKey = present(std::span(spec.inputs), 4), pastValue = present(std::span(spec.inputs), 5);
  if (pastKey != pastValue)
    return "past_key and past_value only work together";
  if (pastKey && present(std::span(spec.inputs), 6))
    return "nonpad_kv_seqlen does not go with past_key";
  if (pastKey && (spec.inputs[4].rank() != 4 || spec.inputs[5].rank() != 4))
    return "past_key and past_value need four dimensions";
  Problem p = makeProblem(spec, std::span(spec.inputs));
  bool heads = p.k.heads > 0 && p.k.heads == p.v.heads && p.q.heads % p.k.heads == 0;
  bool sizes = p.q.size == p.k.size && p.k.length == p.v.length;
  for (size_t i = 0; i < 3 && spec.inputs[0].rank() == 3; ++i)
    sizes &= spec.inputs[i].dims[2] % (i ? p.k.heads : p.q.heads) == 0;
  if (!heads || !sizes || p.q.batch != p.k.batch || p.q.batch != p.v.batch)
    return "Q, K and V do not fit each other: " + toString(spec.inputs[0]) + ", " + toString(spec.inputs[1]) + ", " +
           toString(spec.inputs[2]);
  for (size_t i = 1; i < 3; ++i)
    if (spec.inputs[i].dtype != spec.inputs[0].dtype)
      return "Q, K and V of different types are not supported";
  if (pastKey && (spec.inputs[4].dims != std::vector{p.k.batch, p.k.heads, p.past, p.k.size} ||
                  spec.inputs[5].dims != std::vector{p.v.batch, p.v.heads, p.past, p.v.size}))
    return "past_key or past_value does not fit K and V";
  if (present(std::span(spec.inputs), 6) && spec.inputs[6].elems() != p.q.batch)
    return "nonpad_kv_seqlen needs one element a batch";
  if (!present(std::span(spec.inputs), 3))
    return "";
  // The mask broadcasts to [batch, heads, queries, keys], but may have fewer keys.
  const TensorType &mask = spec.inputs[3];
  const int64_t space[4] = {p.q.batch, p.q.heads, p.q.length, p.total};
  bool fits = mask.rank() >= 1 && mask.rank() <= 4 && (mask.dtype == DType::Bool || isFloat(mask.dtype));
  for (int64_t d = 0; fits && d < mask.rank(); ++d) {
    int64_t size = mask.dims[d], wanted = space[4 - mask.rank() + d];
    fits = d == mask.rank() - 1 ? size <= wanted : size == 1 || size == wanted;
  }
  return fits ? "" : "attn_mask " + toString(mask) + " does not fit";
}

size_t attentionWorkspaceBytes(const StepSpec &spec) {
  Problem p = makeProblem(spec, std::span(spec.inputs));
  return static_cast<size_t>(p.units() * p.unitElems()) * sizeof(double);
}

/// The bias that is added to the scores of one query: the mask, and -infinity for keys that it must not see.
class Bias {
public:
  Bias(const StepSpec &spec, const KernelArgs &args, const Problem &problem)
      : problem(problem), causal(spec.attrs.getInt("is_causal", 0) != 0),
        left(spec.attrs.getInt("left_window_size", -1)), right(spec.attrs.getInt("right_window_size", -1)) {
    if (present(args.inputs, 3))
      mask = args.inputs[3];
    if (present(args.inputs, 6))
      lengths = args.inputs[6];
    if (!mask.present())
      return;
    IndexArray dense = denseStrides(mask.dims);
    int64_t skip = 4 - mask.rank();
    for (int64_t d = skip; d < 4; ++d)
      strides[d] = mask.dims[d - skip] == 1 ? 0 : dense[d - skip];
    maskKeys = mask.dims[mask.rank() - 1];
    strides[3] = 1; // The last dimension does not broadcast: a mask with fewer keys forbids the others.
  }

  /// Fills bias[0, total). False where every key is forbidden.
  bool fill(int64_t b, int64_t head, int64_t query, double *bias) const {
    int64_t valid = lengths.present() ? loadIndex(lengths, b) : problem.total;
    // The query's position among the keys: queries are the last ones of the cache.
    int64_t position = query + (lengths.present() ? valid - problem.q.length : problem.past);
    int64_t maskAt = b * strides[0] + head * strides[1] + query * strides[2];
    bool any = false;
    for (int64_t j = 0; j < problem.total; ++j) {
      bool hidden = j >= valid || (causal && j > position) || (left >= 0 && position - j > left) ||
                    (right >= 0 && j - position > right);
      double value = hidden ? -kInfinity : 0;
      if (mask.present())
        value += j < maskKeys ? maskValue(maskAt + j * strides[3]) : -kInfinity;
      bias[j] = value;
      any |= value != -kInfinity;
    }
    return any;
  }

private:
  double maskValue(int64_t at) const {
    if (mask.dtype == DType::Bool)
      return mask.as<bool>()[at] ? 0 : -kInfinity;
    return loadDouble(mask, at);
  }

  const Problem &problem;
  TensorRef mask, lengths;
  int64_t maskKeys = 0;
  std::array<int64_t, 4> strides{};
  bool causal;
  int64_t left, right;
};

/// The sum of a[i] * b[i], in eight interleaved sums in double, which the compiler vectorises.
template <typename T> double dot(const T *a, const T *b, int64_t count) {
  double lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int64_t lane = 0; lane < 8; ++lane)
      lanes[lane] += static_cast<double>(load(a[i + lane])) * load(b[i + lane]);
  for (; i < count; ++i)
    lanes[i % 8] += static_cast<double>(load(a[i])) * load(b[i]);
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

/// Replaces scores by their softmax. A row that is -infinity throughout becomes 0.
void softmaxRow(double *scores, int64_t count) {
  double maximum = -kInfinity, sum = 0;
  for (int64_t j = 0; j < count; ++j)
    maximum = scores[j] > maximum || std::isnan(scores[j]) ? scores[j] : maximum;
  if (maximum == -kInfinity) {
    std::fill_n(scores, count, 0.0);
    return;
  }
  for (int64_t j = 0; j < count; ++j) {
    scores[j] = std::exp(scores[j] - maximum);
    sum += scores[j];
  }
  for (int64_t j = 0; j < count; ++j)
    scores[j] /= sum;
}

/// present = past followed by the current keys or values, as [batch, heads, total, size].
void storePresent(const TensorRef *past, const TensorRef &current, const Heads &heads, int64_t pastLength,
                  const TensorRef &out) {
  int64_t total = pastLength + heads.length, outHead = total * heads.size;
  if (past) {
    StridedCopy copy;
    copy.add(heads.batch * heads.heads, pastLength * heads.size, outHead);
    copy.add(pastLength * heads.size, 1, 1);
    copy.run(*past, out);
  }
  StridedCopy copy(0, pastLength * heads.size);
  copy.add(heads.batch, heads.batchStride, heads.heads * outHead);
  copy.add(heads.heads, heads.headStride, outHead);
  copy.add(heads.length, heads.rowStride, heads.size);
  copy.add(heads.size, 1, 1);
  copy.run(current, out);
}

/// What qk_matmul_output shows.
enum QkMode : int64_t { Raw = 0, Capped = 1, Biased = 2, Probabilities = 3 };

/// Scores are scaled by `scale` once, not by its root on either side: in double neither way overflows.
template <typename T> void attend(const StepSpec &spec, const KernelArgs &args, const Problem &p) {
  const T *q = args.inputs[0].as<T>(), *k = args.inputs[1].as<T>(), *v = args.inputs[2].as<T>();
  const T *pastKey = present(args.inputs, 4) ? args.inputs[4].as<T>() : nullptr;
  const T *pastValue = present(args.inputs, 5) ? args.inputs[5].as<T>() : nullptr;
  T *y = args.outputs[0].as<T>(), *qk = present(args.outputs, 3) ? args.outputs[3].as<T>() : nullptr;
  int64_t qkMode = spec.attrs.getInt("qk_matmul_output_mode", Raw);
  double softcap = spec.attrs.getFloat("softcap", 0);
  double scale =
      spec.attrs.has("scale") ? spec.attrs.getFloat("scale", 1) : 1 / std::sqrt(static_cast<double>(p.q.size));
  Bias bias(spec, args, p);
  int64_t groupSize = p.q.heads / p.k.heads;

  auto attendHead = [&](int64_t unit) {
    int64_t b = unit / p.q.heads, head = unit % p.q.heads, kvHead = head / groupSize;
    double *scores = reinterpret_cast<double *>(args.workspace.data()) + unit * p.unitElems();
    double *biases = scores + p.total, *sums = biases + p.total;
    auto row = [&](const T *past, const T *current, const Heads &heads, int64_t j) {
      return j < p.past ? past + ((b * heads.heads + kvHead) * p.past + j) * heads.size
                        : current + heads.at(b, kvHead, j - p.past);
    };
    for (int64_t query = 0; query < p.q.length; ++query) {
      T *shown = qk ? qk + (unit * p.q.length + query) * p.total : nullptr;
      auto show = [&](QkMode mode) {
        for (int64_t j = 0; shown && qkMode == mode && j < p.total; ++j)
          shown[j] = roundTo<T>(scores[j]);
      };
      const T *queryRow = q + p.q.at(b, head, query);
      for (int64_t j = 0; j < p.total; ++j)
        scores[j] = scale * dot(queryRow, row(pastKey, k, p.k, j), p.q.size);
      show(Raw);
      for (int64_t j = 0; softcap > 0 && j < p.total; ++j)
        scores[j] = softcap * std::tanh(scores[j] / softcap);
      show(Capped);
      bool any = bias.fill(b, head, query, biases);
      for (int64_t j = 0; j < p.total; ++j)
        scores[j] += biases[j];
      show(Biased);
      // Decided on the bias: a score of +infinity under a forbidden key would leave a NaN.
      if (any)
        softmaxRow(scores, p.total);
      else
        std::fill_n(scores, p.total, 0.0);
      show(Probabilities);
      std::fill_n(sums, p.v.size, 0.0);
      for (int64_t j = 0; j < p.total; ++j) {
        const T *value = row(pastValue, v, p.v, j);
        for (int64_t i = 0; i < p.v.size; ++i)
          sums[i] += scores[j] * load(value[i]);
      }
      T *out = y + p.y.at(b, head, query);
      for (int64_t i = 0; i < p.v.size; ++i)
        out[i] = roundTo<T>(sums[i]);
    }
  };
  int64_t cost = p.q.length * p.total * (p.q.size + p.v.size + 8);
  parallelFor(p.units(), grainFor(cost), [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit)
      attendHead(unit);
  });
}

Status runAttention(const StepSpec &spec, const KernelArgs &args) {
  Problem p = makeProblem(spec, args.inputs);
  dispatchFloat(args.inputs[0].dtype, [&]<typename T>() { attend<T>(spec, args, p); });
  bool cached = present(args.inputs, 4);
  if (present(args.outputs, 1))
    storePresent(cached ? &args.inputs[4] : nullptr, args.inputs[1], p.k, p.past, args.outputs[1]);
  if (present(args.outputs, 2))
    storePresent(cached ? &args.inputs[5] : nullptr, args.inputs[2], p.v, p.past, args.outputs[2]);
  return Status::success();
}

// RotaryEmbedding ---------------------------------------------------------------------------------------------------

std::string refusesRotary(const StepSpec &spec) {
  const TensorType &x = spec.inputs[0];
  int64_t heads = spec.attrs.getInt("num_heads", 0);
  if (x.rank() != 4 && (x.rank() != 3 || heads < 1 || x.dims[2] % heads))
    return "X needs four dimensions, or three and num_heads";
  return "";
}

/// Rotates pairs of elements of each row by the angle of the row's position; elements past the rotated ones stay.
Status runRotary(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &cosines = args.inputs[1], &sines = args.inputs[2], &y = args.outputs[0];
  Heads layout(x.dims, spec.attrs.getInt("num_heads", 0));
  bool interleaved = spec.attrs.getInt("interleaved", 0) != 0, byPosition = present(args.inputs, 3);
  int64_t rotated = spec.attrs.getInt("rotary_embedding_dim", 0);
  rotated = rotated ? rotated : layout.size;
  int64_t half = rotated / 2, cacheRank = byPosition ? 2 : 3;
  if (rotated % 2 || rotated < 0 || rotated > layout.size)
    return stepError(spec,
                     "cannot rotate " + std::to_string(rotated) + " of " + std::to_string(layout.size) + " elements");
  int64_t positions = layout.batch * layout.length;
  for (const TensorRef &cache : {cosines, sines})
    if (cache.rank() != cacheRank || cache.dims[cacheRank - 1] != half ||
        (!byPosition && cache.elems() != positions * half) || cache.elems() != cosines.elems())
      return stepError(spec, "the caches do not fit " + std::to_string(half) + " angles at " +
                                 std::to_string(positions) + " positions");
  for (int64_t i = 0; byPosition && i < positions; ++i)
    if (int64_t position = loadIndex(args.inputs[3], i); position < 0 || position >= cosines.dims[0])
      return stepError(spec, "position " + std::to_string(position) + " is outside [0, " +
                                 std::to_string(cosines.dims[0] - 1) + "]");
  dispatchFloat(x.dtype, [&]<typename T>() {
    parallelFor(positions * layout.heads, grainFor(4 * layout.size), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t b = i / (layout.length * layout.heads), row = i / layout.heads % layout.length, head = i % layout.heads;
        int64_t token = b * layout.length + row, at = layout.at(b, head, row);
        int64_t angle = (byPosition ? loadIndex(args.inputs[3], token) : token) * half;
        const T *from = x.as<T>() + at, *cosine = cosines.as<T>() + angle, *sine = sines.as<T>() + angle;
        T *to = y.as<T>() + at;
        for (int64_t j = 0; j < half; ++j) {
          int64_t real = interleaved ? 2 * j : j, imaginary = interleaved ? 2 * j + 1 : j + half;
          double a = load(from[real]), c = load(from[imaginary]), cosValue = load(cosine[j]), sinValue = load(sine[j]);
          to[real] = roundTo<T>(cosValue * a - sinValue * c);
          to[imaginary] = roundTo<T>(sinValue * a + cosValue * c);
        }
        if (from != to)
          std::copy(from + rotated, from + layout.size, to + rotated);
      }
    });
  });
  return Status::success();
}

} // namespace

std::span<const Entry> attentionEntries() {
  static constexpr Entry entries[] = {
      {"", "Attention", 23, kNewest, runAttention, attentionWorkspaceBytes, refusesAttention},
      {"", "RotaryEmbedding", 23, kNewest, runRotary, nullptr, refusesRotary, pairs<InPlace{0, 0}>, unlessConstant},
  };
  return entries;
}

} // namespace recast::reference
