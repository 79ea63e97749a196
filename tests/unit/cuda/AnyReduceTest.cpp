// Reductions over any axes against the reference evaluator.
#include "tests/unit/cuda/CudaTest.h"

namespace recast::cuda::test {
namespace {

TEST(AnyReduce, EveryChoiceOfAxes) {
  for (DType type : {DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64})
    for (const char *op : {"ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax", "ReduceMin"})
      for (unsigned mask = 0; mask < 8; ++mask) {
        if (!isFloat(type) && std::string_view(op) == "ReduceMean")
          continue;
        Dims dims = {3, 4, 5}, result = dims;
        std::vector<int64_t> axes;
        for (size_t d = 0; d < 3; ++d)
          if (mask >> d & 1) {
            axes.push_back(static_cast<int64_t>(d) - (d == 1 ? 3 : 0));
            result[d] = 1;
          }
        Op step{op, 11, attributes({{"axes", axes}, {"keepdims", int64_t(1)}})};
        if (axes.empty())
          result = {1, 1, 1};
        // Both add in f64 and round once; the order of the addends may differ.
        compare(step, {randomArray(type, dims, mask + 1)}, {{type, result}}, isFloat(type) ? 0x1p-7 : 0);
      }
}

TEST(AnyReduce, NaNIsTheResult) {
  float nan = std::numeric_limits<float>::quiet_NaN();
  for (const char *op : {"ReduceMax", "ReduceMin"})
    compare({op, 11, attributes({{"axes", std::vector<int64_t>{0}}})}, {f32({3, 2}, {1, nan, nan, 2, 3, 4})},
            {{DType::F32, {1, 2}}});
}

TEST(AnyReduce, BoolsAndNothing) {
  for (const char *op : {"ReduceMax", "ReduceMin"}) {
    Attributes attrs = attributes({{"axes", std::vector<int64_t>{1}}, {"keepdims", int64_t(1)}});
    compare({op, 20, attrs}, {boolean({3, 4}, {1, 1, 1, 1, 0, 1, 0, 1, 0, 0, 0, 0})}, {{DType::Bool, {3, 1}}});
    for (DType type : {DType::F32, DType::BF16, DType::I32, DType::Bool})
      compare({op, 20, attrs}, {Array(type, {3, 0})}, {{type, {3, 1}}});
  }
  for (const char *op : {"ReduceSum", "ReduceProd"})
    compare({op, 11, attributes({{"axes", std::vector<int64_t>{1}}})}, {Array(DType::F32, {3, 0})},
            {{DType::F32, {3, 1}}});
}

} // namespace
} // namespace recast::cuda::test
