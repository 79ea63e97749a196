// What ranks do together: all_reduce and rank, as programs of one rank among several. A process alone has the programs
// of the table.
#pragma once
#include "runtime/kernels/cuda/table/KernelTable.h"
#include "runtime/plan/DType.h"

namespace recast::cuda {

/// The launch that sums over ranks, by the device's own library.
inline constexpr std::string_view kAllReduce = "nccl.all_reduce";

/// data[i] becomes the sum over all ranks; F32 or F64.
struct AllReduceArgs {
  void *data;
  int64_t count;
  DType type;
};

/// Of `ranks` processes this one is number `rank`.
struct RankPlace {
  int rank = 0, ranks = 1;
  size_t bucketBytes = 0; ///< Bytes that are reduced at a time, at most.
};

bool isCollective(const StepSpec &spec);

/// The program of `rank` among several ranks.
Program rankProgram(const RankPlace &place);

/// Operands of an all_reduce, or parts of them, that are reduced together. Its memory is the launches' workspace, not
/// the step's: how large that is depends on the ranks, which a plan does not know.
struct Bucket {
  std::vector<size_t> operands;
  size_t bytes = 0;
  std::vector<Launch> fill;  ///< Packs and reduces: reads the operands.
  std::vector<Launch> empty; ///< Writes the results.
};
using Buckets = std::vector<Bucket>;

/// The buckets of an all_reduce among several ranks, or a refusal. The operands that are summed come in `order`, then
/// the maxima, f64 where an operand is, else f32; maxima go through one place for each rank, so that one sum is enough.
bool compileAllReduce(const StepSpec &spec, const RankPlace &place, std::span<const size_t> order, Buckets &buckets,
                      std::string &refusal);
/// Operands of an all_reduce that are summed: the first ones.
size_t numSums(const StepSpec &spec);

} // namespace recast::cuda
