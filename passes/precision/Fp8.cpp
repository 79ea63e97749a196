#include "passes/precision/Fp8.h"
#include "llvm/ADT/StringSwitch.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::precision {

namespace {

// fp8 matrix units want rows that begin at multiples of 16 bytes (cuBLASLt, "cublasLtMatmul()"). A layer runs in fp8 as
// a whole: of rows, contraction and columns of the forward each is the contraction or the row length of one of its
// three products.
constexpr int64_t kSizeMultiple = 16;

// Rows, contraction and columns, as far as they are known.
SmallVector<int64_t, 3> sizesOf(const ProductOperand &a, const ProductOperand &b) {
  auto left = cast<RankedTensorType>(a.value.getType()), right = cast<RankedTensorType>(b.value.getType());
  auto otherAxis = [](RankedTensorType type, int64_t axis) { return 2 * type.getRank() - 3 - axis; };
  int64_t rows = left.getDimSize(otherAxis(left, a.contraction));
  if (right.getRank() == 2) // One right matrix for all: the batch joins the rows.
    for (int64_t size : left.getShape().drop_back(2))
      rows = ShapedType::isDynamic(rows) || ShapedType::isDynamic(size) ? ShapedType::kDynamic : rows * size;
  return {rows, left.getDimSize(a.contraction), right.getDimSize(otherAxis(right, b.contraction))};
}

} // namespace

std::optional<Fp8Recipe> fp8RecipeCalled(StringRef name) {
  return llvm::StringSwitch<std::optional<Fp8Recipe>>(name)
      .Case("delayed", Fp8Recipe::Delayed)
      .Case("current", Fp8Recipe::Current)
      .Case("row", Fp8Recipe::Row)
      .Case("block", Fp8Recipe::Block)
      .Case("mx", Fp8Recipe::Mx)
      .Default(std::nullopt);
}

ProductOperand productOperand(Node product, unsigned i) {
  Value value = product.input(i);
  int64_t last = cast<RankedTensorType>(value.getType()).getRank() - 1;
  bool transposed = product.is("Gemm") && product.getInt(i == 0 ? "transA" : "transB", 0);
  return {value, (i == 0) != transposed ? last : last - 1};
}

std::string whyNotFp8(Node product) {
  for (unsigned i : {0u, 1u}) {
    auto type = dyn_cast<RankedTensorType>(product.input(i).getType());
    if (!type)
      return "the rank of an operand is not known";
    if (type.getRank() < 2)
      return "an operand is a vector";
  }
  std::string text;
  bool fits = true;
  for (int64_t size : sizesOf(productOperand(product, 0), productOperand(product, 1))) {
    bool isKnown = !ShapedType::isDynamic(size);
    fits &= !isKnown || size % kSizeMultiple == 0;
    text += (text.empty() ? "" : "x") + (isKnown ? std::to_string(size) : "?");
  }
  return fits ? "" : "its sizes " + text + " are not all multiples of " + std::to_string(kSizeMultiple);
}

} // namespace recast::precision
