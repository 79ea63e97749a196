#include "runtime/exec/Collectives.h"
#include <algorithm>
#include <cstring>

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

/// Operands go through flat buckets of one type, f64 where an operand has it, else f32. A maximum takes one place a
/// rank, of which each fills its own: the sum is all ranks' values, and one kind of reduction is enough.
template <typename T> class AllReduceKernel final : public Kernel {
public:
  AllReduceKernel(const Step &step, Communicator &communicator, size_t bucketBytes)
      : communicator(communicator), name(step.spec.name), bucketElems(std::max<size_t>(bucketBytes / sizeof(T), 1)) {
    count = step.spec.inputs.size();
    firstMaximum = static_cast<size_t>(step.spec.attrs.getInt("maxima", static_cast<int64_t>(count)));
    size_t total = 0;
    for (size_t i = 0; i < count; ++i)
      total += places(i) * static_cast<size_t>(step.spec.inputs[i].elems());
    bucket.resize(std::min(bucketElems, total));
  }

  std::vector<InPlace> inPlace() const override {
    std::vector<InPlace> pairs; // A maximum is read once more after other ranks' places are known.
    for (size_t i = 0; i < std::min(count, firstMaximum); ++i)
      pairs.push_back({i, i});
    return pairs;
  }

  Status run(const KernelArgs &args) override {
    ++communicator.traffic.reductions;
    Cursor read, write;
    while (read.operand < count) {
      size_t filled = fill(args, read);
      if (!filled)
        continue;
      if (Status status = communicator.sum(bucket.data(), filled); !status.ok())
        return Status::error("'" + name + "' (all_reduce): " + status.message());
      ++communicator.traffic.buckets;
      communicator.traffic.bytes += static_cast<int64_t>(filled * sizeof(T));
      empty(args, write, filled);
    }
    return Status::success();
  }

private:
  /// A place in the row of all operands' elements, each of a maximum once a rank.
  struct Cursor {
    size_t operand = 0, element = 0;
  };

  bool isMaximum(size_t operand) const { return operand >= firstMaximum; }
  size_t places(size_t operand) const { return isMaximum(operand) ? static_cast<size_t>(communicator.size()) : 1; }

  size_t fill(const KernelArgs &args, Cursor &at) {
    size_t filled = 0;
    while (at.operand < count && filled < bucket.size()) {
      const TensorRef &x = args.inputs[at.operand];
      size_t elems = static_cast<size_t>(x.elems()), all = places(at.operand) * elems;
      size_t length = std::min(all - at.element, bucket.size() - filled);
      T *target = bucket.data() + filled;
      dispatchFloat(x.dtype, [&]<typename X>() {
        for (size_t i = 0; i < length; ++i) {
          size_t element = at.element + i;
          bool isOwn = !isMaximum(at.operand) || element / elems == static_cast<size_t>(communicator.rank());
          target[i] = isOwn ? static_cast<T>(x.as<X>()[element % elems]) : T(0);
        }
      });
      filled += length;
      advance(at, length, all);
    }
    return filled;
  }

  void empty(const KernelArgs &args, Cursor &at, size_t filled) {
    for (size_t taken = 0; at.operand < count && taken < filled;) {
      const TensorRef &y = args.outputs[at.operand];
      size_t elems = static_cast<size_t>(y.elems()), all = places(at.operand) * elems;
      size_t length = std::min(all - at.element, filled - taken);
      const T *source = bucket.data() + taken;
      dispatchFloat(y.dtype, [&]<typename Y>() {
        for (size_t i = 0; i < length; ++i) {
          size_t element = at.element + i;
          Y &result = y.as<Y>()[element % elems];
          // Of a maximum, the places of rank 0 come first. A NaN is the largest number.
          if (element < elems || source[i] > static_cast<T>(result) || source[i] != source[i])
            result = static_cast<Y>(source[i]);
        }
      });
      taken += length;
      advance(at, length, all);
    }
    while (at.operand < count && !args.outputs[at.operand].elems())
      ++at.operand;
  }

  void advance(Cursor &at, size_t length, size_t all) const {
    at.element += length;
    if (at.element == all)
      at = {at.operand + 1, 0};
  }

  Communicator &communicator;
  std::string name;
  size_t bucketElems, count = 0, firstMaximum = 0;
  std::vector<T> bucket;
};

} // namespace

Result<std::unique_ptr<Kernel>> createCollective(const Step &step, Communicator &communicator, size_t bucketBytes) {
  if (step.spec.domain != "recast" || (step.spec.op != "all_reduce" && step.spec.op != "rank"))
    return std::unique_ptr<Kernel>();
  if (step.spec.op == "rank")
    return std::unique_ptr<Kernel>(std::make_unique<RankKernel>(communicator));
  bool isWide = false;
  for (const TensorType &type : step.spec.inputs) {
    if (!isFloat(type.dtype))
      return Status::error("'" + step.spec.name + "' (all_reduce): ranks do not sum " + std::string(name(type.dtype)));
    isWide |= type.dtype == DType::F64;
  }
  if (isWide)
    return std::unique_ptr<Kernel>(std::make_unique<AllReduceKernel<double>>(step, communicator, bucketBytes));
  return std::unique_ptr<Kernel>(std::make_unique<AllReduceKernel<float>>(step, communicator, bucketBytes));
}

} // namespace recast
