#include "runtime/exec/Collectives.h"
#include <algorithm>
#include <cstring>
#include <tuple>

namespace recast {

namespace {

class RankKernel final : public Kernel {
public:
  explicit RankKernel(const Communicator &communicator) : communicator(communicator) {}
  bool mayFail() const override { return false; }
  Status run(const KernelArgs &args) override {
    *args.outputs[0].as<int64_t>() = communicator.rank();
    return Status::success();
  }

private:
  const Communicator &communicator;
};

/// Operands go through flat buckets of one type, f64 where an operand has it, else f32, in the order in which they are
/// known. A maximum takes one place a rank, of which each fills its own: the sum is all ranks' values, and one kind of
/// reduction is enough. Buckets that begin early have memory of their own, for their results are written by run(); of
/// the others one is summed while the next is filled and the one before is emptied.
template <typename T> class AllReduceKernel final : public AllReduce {
public:
  AllReduceKernel(const Step &step, Communicator &communicator, ReductionThread *thread, const KnownAfter &known,
                  size_t bucketBytes)
      : communicator(communicator), thread(thread), name(step.spec.name), count(step.spec.inputs.size()),
        firstMaximum(static_cast<size_t>(step.spec.attrs.getInt("maxima", static_cast<int64_t>(count)))) {
    makeBuckets(step, known, std::max<size_t>(bucketBytes / sizeof(T), 1));
    while (thread && numEarly < buckets.size() && buckets[numEarly].knownAfter < known.backward)
      ++numEarly;
    size_t others = buckets.size() - numEarly;
    memory.resize(numEarly + std::min(others, thread ? kInTurn : 1));
    for (size_t i = 0; i < buckets.size(); ++i)
      if (std::vector<T> &place = memoryOf(i); place.size() < buckets[i].elems)
        place.resize(buckets[i].elems);
  }

  std::vector<InPlace> inPlace() const override {
    std::vector<InPlace> pairs; // A maximum is read once more after other ranks' places are known.
    for (size_t i = 0; i < std::min(count, firstMaximum); ++i)
      pairs.push_back({i, i});
    return pairs;
  }

  std::vector<size_t> early() const override {
    std::vector<size_t> steps;
    for (size_t i = 0; i < numEarly; ++i)
      steps.push_back(buckets[i].knownAfter);
    return steps;
  }

  void begin(size_t bucket, const KernelArgs &args) override {
    isOutOfStep |= bucket != filled; // The run that others were begun for has failed.
    if (!isOutOfStep)
      (void)fillNext(args);
  }

  Status run(const KernelArgs &args) override {
    if (isOutOfStep)
      return error("an earlier step has failed on this rank, and the others are ahead of it");
    ++communicator.traffic.reductions;
    for (size_t emptied = 0; emptied < buckets.size(); ++emptied) {
      while (filled < buckets.size() && (filled < numEarly || filled < std::max(emptied, numEarly) + othersAtOnce()))
        if (Status status = fillNext(args); !status.ok())
          return error(status.message());
      if (thread)
        if (Status status = thread->wait(buckets[emptied].sum); !status.ok())
          return error(status.message());
      empty(args, emptied);
      ++communicator.traffic.buckets;
      communicator.traffic.bytes += static_cast<int64_t>(buckets[emptied].elems * sizeof(T));
    }
    filled = 0;
    return Status::success();
  }

private:
  static constexpr size_t kInTurn = 2; ///< Of buckets that do not begin early.

  /// Elements of an operand that lie together in a bucket; of a maximum they are counted once a rank.
  struct Piece {
    size_t operand, begin, elems;
  };
  struct Bucket {
    std::vector<Piece> pieces;
    size_t elems = 0, knownAfter = 0;
    size_t sum = 0; ///< The thread's number.
  };

  void makeBuckets(const Step &step, const KnownAfter &known, size_t most) {
    std::vector<size_t> order(count);
    for (size_t i = 0; i < count; ++i)
      order[i] = i;
    auto knownAfter = [&](size_t operand) { return operand < known.steps.size() ? known.steps[operand] : 0; };
    std::ranges::sort(order, {}, [&](size_t i) { return std::tuple(isMaximum(i), knownAfter(i), i); });
    for (size_t i : order) {
      size_t all = places(i) * static_cast<size_t>(step.spec.inputs[i].elems());
      for (size_t at = 0; at < all;) {
        if (buckets.empty() || buckets.back().elems == most)
          buckets.emplace_back();
        Bucket &bucket = buckets.back();
        size_t elems = std::min(all - at, most - bucket.elems);
        bucket.pieces.push_back({i, at, elems});
        bucket.elems += elems;
        bucket.knownAfter = std::max(bucket.knownAfter, knownAfter(i));
        at += elems;
      }
    }
  }

  bool isMaximum(size_t operand) const { return operand >= firstMaximum; }
  size_t places(size_t operand) const { return isMaximum(operand) ? static_cast<size_t>(communicator.size()) : 1; }
  size_t othersAtOnce() const { return memory.size() - numEarly; }
  std::vector<T> &memoryOf(size_t bucket) {
    return memory[bucket < numEarly ? bucket : numEarly + (bucket - numEarly) % othersAtOnce()];
  }
  Status error(const std::string &text) const { return Status::error("'" + name + "' (all_reduce): " + text); }

  /// Fills the next bucket and sums it, here or on the thread.
  Status fillNext(const KernelArgs &args) {
    Bucket &bucket = buckets[filled];
    T *data = memoryOf(filled++).data(), *target = data;
    for (const Piece &piece : bucket.pieces) {
      const TensorRef &x = args.inputs[piece.operand];
      auto elems = static_cast<size_t>(x.elems());
      dispatchFloat(x.dtype, [&]<typename X>() {
        for (size_t i = 0; i < piece.elems; ++i) {
          size_t element = piece.begin + i;
          bool isOwn = !isMaximum(piece.operand) || element / elems == static_cast<size_t>(communicator.rank());
          target[i] = isOwn ? static_cast<T>(x.as<X>()[element % elems]) : T(0);
        }
      });
      target += piece.elems;
    }
    if (!thread)
      return communicator.sum(data, bucket.elems);
    bucket.sum = thread->add(data, bucket.elems);
    return Status::success();
  }

  void empty(const KernelArgs &args, size_t number) {
    const T *source = memoryOf(number).data();
    for (const Piece &piece : buckets[number].pieces) {
      const TensorRef &y = args.outputs[piece.operand];
      auto elems = static_cast<size_t>(y.elems());
      dispatchFloat(y.dtype, [&]<typename Y>() {
        for (size_t i = 0; i < piece.elems; ++i) {
          size_t element = piece.begin + i;
          Y &result = y.as<Y>()[element % elems];
          // Of a maximum, the places of rank 0 come first. A NaN is the largest number.
          if (element < elems || source[i] > static_cast<T>(result) || source[i] != source[i])
            result = static_cast<Y>(source[i]);
        }
      });
      source += piece.elems;
    }
  }

  Communicator &communicator;
  ReductionThread *thread;
  std::string name;
  size_t count, firstMaximum;
  std::vector<Bucket> buckets;
  size_t numEarly = 0;
  std::vector<std::vector<T>> memory; ///< Of the early buckets, one each; the others take turns.
  size_t filled = 0;                  ///< Buckets of this step.
  bool isOutOfStep = false;
};

} // namespace

Result<std::unique_ptr<AllReduce>> createAllReduce(const Step &step, Communicator &communicator,
                                                   ReductionThread *thread, const KnownAfter &known,
                                                   size_t bucketBytes) {
  if (step.spec.domain != "recast" || step.spec.op != "all_reduce")
    return std::unique_ptr<AllReduce>();
  bool isWide = false;
  for (const TensorType &type : step.spec.inputs) {
    if (!isFloat(type.dtype))
      return Status::error("'" + step.spec.name + "' (all_reduce): ranks do not sum " + std::string(name(type.dtype)));
    isWide |= type.dtype == DType::F64;
  }
  std::unique_ptr<AllReduce> kernel;
  if (isWide)
    kernel = std::make_unique<AllReduceKernel<double>>(step, communicator, thread, known, bucketBytes);
  else
    kernel = std::make_unique<AllReduceKernel<float>>(step, communicator, thread, known, bucketBytes);
  return std::move(kernel);
}

std::unique_ptr<Kernel> createRank(const Step &step, const Communicator &communicator) {
  if (step.spec.domain != "recast" || step.spec.op != "rank")
    return nullptr;
  return std::make_unique<RankKernel>(communicator);
}

} // namespace recast
