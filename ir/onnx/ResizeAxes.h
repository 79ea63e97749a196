// What a Resize or Upsample node does to each of its axes.
#pragma once
#include "ir/onnx/Builder.h"

namespace recast::onnx_ir {

/// Both operators are linear, and separable: along an axis of n elements that become m, y = x W with a matrix W [n, m].
/// Row i of W is what the operator itself makes of the i-th unit vector, whatever its mode and its coordinates, so W is
/// Resize(identity): a constant once the sizes are. Precondition: the ranks of input and output are known.
class ResizeAxes {
public:
  ResizeAxes(Node node, NodeBuilder &b);

  /// The axes that entries of scales or sizes stand for, counted from the front.
  const llvm::SmallVector<int64_t> &axes() const { return axisList; }
  /// Why there is no such matrix; empty where there is.
  std::string problem() const;
  /// True where axis `at` of `axes()` stays as it is.
  bool keeps(size_t at) const;
  /// How often each element of the axis is repeated, where the operator does nothing else; otherwise 0.
  int64_t repeats(size_t at) const;
  /// W of an axis.
  mlir::Value matrix(size_t at, mlir::Type elementType) const;
  /// True where the outputs are a part of the input's region, and what lies outside of it takes extrapolation_value: W
  /// is 0 there.
  bool crops() const { return coordinates() == "tf_crop_and_resize"; }
  /// [m], true where an output along the axis lies inside. Precondition: crops().
  mlir::Value isInside(size_t at) const;

private:
  mlir::RankedTensorType typeOf(mlir::Value value) const;
  mlir::Value sizeOf(mlir::Value value, int64_t axis) const;
  llvm::StringRef coordinates() const;
  mlir::Value resizedIdentity(size_t at, mlir::Type elementType, llvm::ArrayRef<mlir::NamedAttribute> attrs) const;
  bool hasWholeRegion(size_t at) const;
  mlir::Value noFloats() const;
  mlir::Value element(mlir::Value list, int64_t at) const;
  mlir::Value scaleOf(size_t at) const;
  mlir::Value region(size_t at) const;

  Node node;
  NodeBuilder &b;
  bool isUpsample, isOld;    ///< Old: before coordinates could be chosen.
  mlir::Value scales, sizes; ///< One of them; neither where Upsample has its scales as an attribute.
  llvm::SmallVector<int64_t> axisList;
  std::optional<llvm::SmallVector<double>> knownScales;
};

} // namespace recast::onnx_ir
