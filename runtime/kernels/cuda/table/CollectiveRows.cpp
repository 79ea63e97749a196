// all_reduce and rank.
#include "runtime/kernels/cuda/source/Copy.h"
#include "runtime/kernels/cuda/source/Scaling.h"
#include "runtime/kernels/cuda/table/Collective.h"
#include <algorithm>

namespace recast::cuda {
namespace {

/// Elements of an operand that lie together in a bucket.
struct Piece {
  size_t operand;
  int64_t begin, elems, place; ///< In the operand, in the bucket.
};

class Reduction {
public:
  Reduction(const StepSpec &spec, const RankPlace &place) : spec(spec), place(place) {
    for (const TensorType &type : spec.inputs)
      if (type.dtype == DType::F64)
        wide = DType::F64;
    firstMaximum = numSums(spec);
    for (size_t i = firstMaximum; i < spec.inputs.size(); ++i)
      maxima += spec.inputs[i].elems();
    capacity = std::max<int64_t>(static_cast<int64_t>(place.bucketBytes / byteSize(wide)), 1);
  }

  Buckets compile(std::span<const size_t> order) {
    std::vector<std::vector<Piece>> buckets(1);
    int64_t filled = 0;
    for (size_t i : order)
      for (int64_t begin = 0, left = spec.inputs[i].elems(); left;) {
        if (filled == capacity)
          buckets.emplace_back(), filled = 0;
        int64_t elems = std::min(left, capacity - filled);
        buckets.back().push_back({i, begin, elems, filled});
        begin += elems, left -= elems, filled += elems;
      }
    int64_t places = maxima * place.ranks;
    if (maxima && filled && filled + places > capacity)
      buckets.emplace_back();
    for (size_t i = 0; i < buckets.size(); ++i) {
      int64_t count = buckets[i].empty() ? 0 : buckets[i].back().place + buckets[i].back().elems;
      int64_t maximaPlaces = i + 1 == buckets.size() ? places : 0;
      if (count + maximaPlaces)
        reduce(buckets[i], count, maximaPlaces);
    }
    return std::move(result);
  }

private:
  Operand inBucket(int64_t first, int64_t elems) const {
    return workspace(static_cast<size_t>(first) * byteSize(wide), static_cast<size_t>(elems) * byteSize(wide));
  }

  /// `places`: of maxima, after the `count` elements of sums.
  void reduce(const std::vector<Piece> &sums, int64_t count, int64_t places) {
    Program in, out;
    std::vector<Piece> own, largest; // Where this rank's maxima go, and where those of all are found.
    Bucket bucket;
    for (const Piece &piece : sums)
      bucket.operands.push_back(piece.operand);
    if (places) {
      int64_t at = count;
      for (size_t i = firstMaximum; i < spec.inputs.size(); ++i) {
        int64_t elems = spec.inputs[i].elems();
        bucket.operands.push_back(i);
        largest.push_back({i, 0, elems, at});
        own.push_back({i, 0, elems, at + place.rank * maxima});
        at += elems;
      }
      Operand all = inBucket(count, places);
      LaunchOf<FillArgs>("fill_zero", {.dst = nullptr, .bytes = static_cast<int64_t>(all.bytes)})
          .write(&FillArgs::dst, all)
          .grid(blocksFor(places))
          .into(in);
    }
    copy(sums, in, true);
    copy(own, in, true);
    LaunchOf<AllReduceArgs>(std::string(kAllReduce), {.data = nullptr, .count = count + places, .type = wide})
        .update(&AllReduceArgs::data, inBucket(0, count + places))
        .into(in);
    if (places)
      LaunchOf<RankMaximaArgs>("rank_maxima" + typeSuffix(wide), {.x = nullptr, .count = maxima, .ranks = place.ranks})
          .update(&RankMaximaArgs::x, inBucket(count, places))
          .grid(blocksFor(maxima))
          .into(out);
    copy(sums, out, false);
    copy(largest, out, false);
    bucket.fill = std::move(in.launches);
    bucket.empty = std::move(out.launches);
    bucket.bytes = static_cast<size_t>(count + places) * byteSize(wide);
    result.push_back(std::move(bucket));
  }

  /// Into the bucket, or out of it.
  void copy(const std::vector<Piece> &pieces, Program &program, bool isPacking) {
    for (size_t first = 0; first < pieces.size(); first += kListTensors) {
      size_t n = std::min<size_t>(kListTensors, pieces.size() - first);
      TensorList list{};
      int32_t blocks = 0;
      for (size_t k = 0; k < n; ++k) {
        const Piece &piece = pieces[first + k];
        DType type = spec.inputs[piece.operand].dtype;
        list.elems.values[k] = piece.elems;
        list.xTypes.values[k] = static_cast<uint8_t>(isPacking ? type : wide);
        list.yTypes.values[k] = static_cast<uint8_t>(isPacking ? wide : type);
        list.firstBlock.values[k] = blocks;
        blocks += static_cast<int32_t>((piece.elems + kListBlock - 1) / kListBlock);
      }
      for (size_t k = n; k <= kListTensors; ++k)
        list.firstBlock.values[k] = blocks;
      if (!blocks)
        continue;
      LaunchOf<ListMapArgs> launch("list_map", {.list = list,
                                                .scalar = nullptr,
                                                .factor = nullptr,
                                                .found = nullptr,
                                                .scalarType = 0,
                                                .map = ListMap::Copy});
      for (size_t k = 0; k < n; ++k) {
        const Piece &piece = pieces[first + k];
        if (!piece.elems)
          continue;
        size_t element = byteSize(spec.inputs[piece.operand].dtype);
        Operand tensor = isPacking ? input(piece.operand) : output(piece.operand),
                part = inBucket(piece.place, piece.elems);
        tensor.offset = static_cast<size_t>(piece.begin) * element;
        tensor.bytes = static_cast<size_t>(piece.elems) * element;
        launch.pointer(offsetof(TensorList, x) + k * sizeof(void *), isPacking ? tensor : part, Use::Read);
        launch.pointer(offsetof(TensorList, y) + k * sizeof(void *), isPacking ? part : tensor, Use::Write);
      }
      launch.grid(blocks).into(program);
    }
  }

  const StepSpec &spec;
  RankPlace place;
  Buckets result;
  DType wide = DType::F32;
  size_t firstMaximum = 0;
  int64_t maxima = 0, capacity = 1; ///< Elements.
};

std::string compileAlone(const StepSpec &spec, Program &program) {
  for (size_t i = 0; i < spec.outputs.size(); ++i) {
    program.inPlace.push_back({i, i});
    copyWhole(program, input(i), output(i), spec.outputs[i].bytes());
  }
  return "";
}

std::string compileRank(const StepSpec &spec, Program &program) {
  fillZero(program, spec, 0);
  return "";
}

} // namespace

bool isCollective(const StepSpec &spec) {
  return spec.domain == "recast" && (spec.op == "all_reduce" || spec.op == "rank");
}

size_t numSums(const StepSpec &spec) {
  auto count = static_cast<int64_t>(spec.inputs.size());
  return static_cast<size_t>(std::clamp<int64_t>(spec.attrs.getInt("maxima", count), 0, count));
}

Program rankProgram(const RankPlace &place) {
  Program program;
  // A matrix of one element, whose one is the rank.
  LaunchOf<EyeArgs>("eye_8", {.dst = nullptr, .count = 1, .columns = 1, .k = 0, .one = uint64_t(place.rank)})
      .write(&EyeArgs::dst, output(0))
      .grid(1)
      .into(program);
  return program;
}

bool compileAllReduce(const StepSpec &spec, const RankPlace &place, std::span<const size_t> order, Buckets &buckets,
                      std::string &refusal) {
  for (const TensorType &type : spec.inputs)
    if (!isFloat(type.dtype)) {
      refusal = "ranks do not sum " + std::string(name(type.dtype));
      return false;
    }
  buckets = Reduction(spec, place).compile(order);
  return true;
}

std::span<const Row> collectiveRows() {
  static constexpr Row rows[] = {
      {"recast", "all_reduce", 1, 1, compileAlone},
      {"recast", "rank", 1, 1, compileRank},
  };
  return rows;
}

} // namespace recast::cuda
