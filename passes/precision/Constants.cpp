#include "passes/precision/Constants.h"
#include "llvm/ADT/APFloat.h"
#include <cmath>

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::precision {

namespace {

llvm::APFloat rounded(double number, Type type, bool &losesInfo) {
  llvm::APFloat value(number);
  value.convert(cast<FloatType>(type).getFloatSemantics(), llvm::APFloat::rmNearestTiesToEven, &losesInfo);
  return value;
}

double largest(Type type) {
  llvm::APFloat value = llvm::APFloat::getLargest(cast<FloatType>(type).getFloatSemantics());
  bool losesInfo;
  value.convert(llvm::APFloat::IEEEdouble(), llvm::APFloat::rmNearestTiesToEven, &losesInfo);
  return value.convertToDouble();
}

} // namespace

std::optional<double> scalarOf(Value value) {
  while (value && isa_and_nonnull<CastOp, CastLikeOp>(value.getDefiningOp()))
    value = value.getDefiningOp()->getOperand(0);
  return constantScalar(value);
}

Loss lossOf(double number, Type low) {
  bool losesInfo = false;
  llvm::APFloat value = rounded(number, low, losesInfo);
  if (!losesInfo || std::isnan(number))
    return Loss::None;
  if (!value.isFinite())
    return Loss::Overflows;
  if (value.isZero() || value.isDenormal())
    return Loss::Vanishes;
  bool exact;
  value.convert(llvm::APFloat::IEEEdouble(), llvm::APFloat::rmNearestTiesToEven, &exact);
  return std::fabs(value.convertToDouble()) == 1 ? Loss::Collapses : Loss::None;
}

bool isExact(double number, Type low) {
  bool losesInfo = false;
  rounded(number, low, losesInfo);
  return !losesInfo;
}

std::optional<UnfitNumber> unfitNumber(Value constant, Type low) {
  TensorAttr tensor = constantOf(constant);
  if (!tensor || !isa<FloatType>(tensor.getType().getElementType()) || tensor.getType().getNumElements() > kReadElems)
    return std::nullopt;
  auto numbers = asDoubles(tensor);
  if (!numbers)
    return std::nullopt;
  if (numbers->size() == 1) {
    Loss loss = lossOf(numbers->front(), low);
    return loss == Loss::None ? std::nullopt : std::optional(UnfitNumber{numbers->front(), loss});
  }
  double top = 0, most = largest(low);
  for (double number : *numbers) {
    if (std::isfinite(number) && std::fabs(number) > most && lossOf(number, low) == Loss::Overflows)
      return UnfitNumber{number, Loss::Overflows};
    if (std::fabs(number) > std::fabs(top))
      top = number;
  }
  if (top != 0 && lossOf(top, low) == Loss::Vanishes)
    return UnfitNumber{top, Loss::Vanishes};
  return std::nullopt;
}

StringRef describe(Loss loss) {
  switch (loss) {
  case Loss::None:
    return "keeps its meaning";
  case Loss::Overflows:
    return "overflows to infinity";
  case Loss::Vanishes:
    return "underflows";
  case Loss::Collapses:
    return "rounds to one";
  }
  llvm_unreachable("covered");
}

TensorAttr saturated(TensorAttr tensor, Type low) {
  SmallVector<double> numbers = *asDoubles(tensor);
  double most = largest(low);
  for (double &number : numbers)
    if (std::isfinite(number))
      number = std::clamp(number, -most, most);
  SmallVector<char> bytes;
  encode(low, numbers, bytes);
  return makeTensor(RankedTensorType::get(tensor.getType().getShape(), low), bytes);
}

} // namespace recast::precision
