#include "runtime/fusion/RowSums.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "runtime/fusion/MathFunctions.h"
#include <limits>

using namespace mlir;
namespace recast::fusion {

namespace {

Value isUnordered(ImplicitLocOpBuilder &b, Value x, Value y) {
  return arith::CmpFOp::create(b, arith::CmpFPredicate::UNO, x, y);
}

} // namespace

RowSums::RowSums(ImplicitLocOpBuilder &b, ArrayRef<std::pair<Op, DType>> kinds, int64_t lanes)
    : b(b), shape(VectorType::get({lanes}, b.getI32Type())) {
  for (auto [op, type] : kinds)
    sums.push_back({op, type});
}

SmallVector<Value> RowSums::start() {
  SmallVector<Value> carried;
  for (const Sum &sum : sums) {
    carried.push_back(neutral(b, sum.op, sum.type, shape));
    if (sum.isWatched())
      carried.push_back(constantOf(b, carried.back().getType(), 0.0));
  }
  return carried;
}

Value RowSums::join(const Sum &sum, Value x, Value y) {
  if (!sum.isWatched())
    return accumulate(b, sum.op, sum.type, x, y);
  auto predicate = sum.op == Op::ReduceMax ? arith::CmpFPredicate::OGT : arith::CmpFPredicate::OLT;
  return arith::SelectOp::create(b, arith::CmpFOp::create(b, predicate, y, x), y, x);
}

SmallVector<Value> RowSums::take(Terms terms, ValueRange carried) {
  SmallVector<Value> next(carried);
  size_t at = 0;
  for (auto [sum, x] : llvm::zip(sums, terms)) {
    Value &total = next[at++];
    if (sum.isWatched()) {
      Value &seen = next[at++], nan = constantOf(b, x[0].getType(), std::numeric_limits<double>::quiet_NaN());
      for (size_t i = 0; i < x.size(); i += 2)
        seen = arith::SelectOp::create(b, isUnordered(b, x[i], x[std::min(i + 1, x.size() - 1)]), nan, seen);
    }
    for (size_t step = 1; step < x.size(); step *= 2)
      for (size_t i = 0; i + step < x.size(); i += 2 * step)
        x[i] = join(sum, x[i], x[i + step]);
    total = join(sum, total, x[0]);
  }
  return next;
}

SmallVector<Value> RowSums::totals(ValueRange carried) {
  SmallVector<Value> results;
  size_t at = 0;
  for (const Sum &sum : sums) {
    Value x = carried[at++];
    if (sum.isWatched()) {
      Value seen = carried[at++];
      x = arith::SelectOp::create(b, isUnordered(b, seen, seen), seen, x);
    }
    results.push_back(overLanes(sum, x));
  }
  return results;
}

Value RowSums::overLanes(const Sum &sum, Value x) {
  for (int64_t lanes = cast<VectorType>(x.getType()).getNumElements(); lanes > 1; lanes /= 2) {
    auto half = [&](int64_t from) {
      SmallVector<int64_t> picks = llvm::to_vector(llvm::seq<int64_t>(from, from + lanes / 2));
      return vector::ShuffleOp::create(b, x, x, picks).getResult();
    };
    x = accumulate(b, sum.op, sum.type, half(0), half(lanes / 2));
  }
  return vector::ExtractOp::create(b, x, int64_t(0));
}

} // namespace recast::fusion
