//===- OnnxOps.td - operators that passes and kernels know by type ------------===//
//
// Families first, then a line or two an operator. Semantics are the ONNX operator's of the same name, at the opset that
// the model imports: https://onnx.ai/onnx/operators/. Attributes, defaults, legality and shape functions come from the
// ONNX library's schemas and are not repeated here. Numbers are arithmetic operations an element (see WorkClass).
//===----------------------------------------------------------------------===//
#ifndef RECAST_ONNX_OPS
#define RECAST_ONNX_OPS

include "ir/onnx/OnnxBase.td"
include "mlir/Interfaces/ControlFlowInterfaces.td"

//===-- Structure ----------------------------------------------------------===//

def ONNX_GraphOp : ONNX_Op<"graph", [IsolatedFromAbove, SingleBlock]> {
  let summary = "The model's graph: arguments are its inputs, the terminator names its outputs";
  let arguments = (ins DictionaryAttr:$info);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "attr-dict-with-keyword $body";
}

def ONNX_FunctionOp : ONNX_Op<"function", [IsolatedFromAbove, SingleBlock]> {
  let summary = "A model-local function (FunctionProto)";
  let description = "`info` has `name`, `domain`, `overload`, `inputs`, `outputs`, `opsets`, `attributes`.";
  let arguments = (ins DictionaryAttr:$info);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "attr-dict-with-keyword $body";
}

def ONNX_ReturnOp : ONNX_Op<"return", [Terminator, Pure]> {
  let summary = "Ends a graph, a function or a body: its operands are the outputs";
  let arguments = (ins Variadic<AnyType>:$outputs);
  let assemblyFormat = "($outputs^ `:` type($outputs))? attr-dict";
}

def ONNX_AbsentOp : ONNX_Op<"absent", [Pure]> {
  let summary = "Stands where an optional input is left out";
  let results = (outs ONNX_AbsentType:$result);
  let assemblyFormat = "attr-dict";
}

def ONNX_InitializerOp : ONNX_Op<"initializer", [Pure]> {
  let summary = "An initializer: a tensor with a name, usually a view into the mapped file";
  let arguments = (ins ONNX_TensorAttr:$value);
  let results = (outs AnyType:$result);
  let assemblyFormat = "$value attr-dict `:` type($result)";
}

def ONNX_NodeGenericOp : ONNX_Op<"node", [DeclareOpInterfaceMethods<ONNX_NodeInterface>]> {
  let summary = "A node of another domain, or of an operator that no pass needs typed";
  let description = "`onnx.op_type` and `onnx.domain` say which. Never pure: nothing is known about it.";
  let arguments = (ins Variadic<AnyType>:$inputs);
  let results = (outs Variadic<AnyType>:$outputs);
  let regions = (region VariadicRegion<AnyRegion>:$bodies);
  let hasVerifier = 1;
  let extraClassDefinition = [{
    ::recast::onnx_ir::Facts $cppClass::facts() {
      return {::recast::onnx_ir::AutocastClass::Never, 0, 0, 1, ::recast::onnx_ir::Work::Unknown, 0};
    }
  }];
}

//===-- Families -----------------------------------------------------------===//

class ONNX_UnaryOp<string mnemonic, AutocastClass autocast = Neutral, int flops = 1>
    : ONNX_NodeOp<mnemonic, autocast, 1, 0, 0, [], ElementwiseWork, flops>;
class ONNX_BroadcastOp<string mnemonic, AutocastClass autocast = Promote, int flops = 1>
    : ONNX_NodeOp<mnemonic, autocast, 1, 0, 0, [], ElementwiseWork, flops>;
class ONNX_PredicateOp<string mnemonic> : ONNX_NodeOp<mnemonic, Never, 1, 0, 0, [], ElementwiseWork, 1>;
class ONNX_ReduceOp<string mnemonic, AutocastClass autocast = Fp32, int flops = 1>
    : ONNX_NodeOp<mnemonic, autocast, 1, 0, 0, [], ReductionWork, flops>;
class ONNX_RowOp<string mnemonic, int flops> : ONNX_NodeOp<mnemonic, Fp32, 1, 0, 0, [], ReductionWork, flops>;
class ONNX_ViewOp<string mnemonic> : ONNX_NodeOp<mnemonic, Neutral, 1, 1, 0, [], NothingWork>;
class ONNX_MoveOp<string mnemonic, AutocastClass autocast = Neutral>
    : ONNX_NodeOp<mnemonic, autocast, 1, 0, 0, [], MoveWork>;
class ONNX_ProductOp<string mnemonic, WorkClass work = ProductWork> : ONNX_NodeOp<mnemonic, Low, 0, 0, 0, [], work>;
class ONNX_PoolOp<string mnemonic, AutocastClass autocast>
    : ONNX_NodeOp<mnemonic, autocast, 0, 0, 0, [], ReductionWork, 1>;
class ONNX_NormOp<string mnemonic, int flops> : ONNX_NodeOp<mnemonic, Fp32, 1, 0, 0, [], ReductionWork, flops>;
class ONNX_LossOp<string mnemonic, int flops> : ONNX_NodeOp<mnemonic, Fp32, 0, 0, 0, [], ReductionWork, flops>;
class ONNX_SourceOp<string mnemonic, WorkClass work = NothingWork> : ONNX_NodeOp<mnemonic, Never, 1, 0, 0, [], work>;
// Draws random numbers, or draws them under some attributes.
class ONNX_RandomOp<string mnemonic, AutocastClass autocast = Neutral>
    : ONNX_NodeOp<mnemonic, autocast, 0, 0, 1, [], ElementwiseWork, 20>;
// Has graphs for attributes.
class ONNX_ControlOp<string mnemonic> : ONNX_NodeOp<mnemonic, Never, 0, 0, 1, [], ControlWork> {
  let regions = (region VariadicRegion<AnyRegion>:$bodies);
  let assemblyFormat = ?;
}

//===-- Element-wise, one input -------------------------------------------===//

def ONNX_AbsOp : ONNX_UnaryOp<"Abs">;
def ONNX_NegOp : ONNX_UnaryOp<"Neg">;
def ONNX_ReluOp : ONNX_UnaryOp<"Relu">;
def ONNX_LeakyReluOp : ONNX_UnaryOp<"LeakyRelu", Neutral, 2>;
def ONNX_EluOp : ONNX_UnaryOp<"Elu", Neutral, 13>;
def ONNX_SeluOp : ONNX_UnaryOp<"Selu", Neutral, 14>;
def ONNX_CeluOp : ONNX_UnaryOp<"Celu", Neutral, 16>;
def ONNX_ThresholdedReluOp : ONNX_UnaryOp<"ThresholdedRelu">;
def ONNX_HardSigmoidOp : ONNX_UnaryOp<"HardSigmoid", Neutral, 3>;
def ONNX_HardSwishOp : ONNX_UnaryOp<"HardSwish", Neutral, 4>;
def ONNX_SigmoidOp : ONNX_UnaryOp<"Sigmoid", Neutral, 17>;
def ONNX_TanhOp : ONNX_UnaryOp<"Tanh", Neutral, 16>;
def ONNX_CeilOp : ONNX_UnaryOp<"Ceil">;
def ONNX_FloorOp : ONNX_UnaryOp<"Floor">;
def ONNX_RoundOp : ONNX_UnaryOp<"Round">;
def ONNX_SignOp : ONNX_UnaryOp<"Sign">;
def ONNX_ClipOp : ONNX_UnaryOp<"Clip", Neutral, 2>;
def ONNX_GeluOp : ONNX_UnaryOp<"Gelu", Neutral, 24>;
def ONNX_SwishOp : ONNX_UnaryOp<"Swish", Neutral, 18>;
def ONNX_MishOp : ONNX_UnaryOp<"Mish", Neutral, 42>;
def ONNX_SoftsignOp : ONNX_UnaryOp<"Softsign", Neutral, 6>;
def ONNX_SinOp : ONNX_UnaryOp<"Sin", Neutral, 16>;
def ONNX_CosOp : ONNX_UnaryOp<"Cos", Neutral, 16>;
def ONNX_ExpOp : ONNX_UnaryOp<"Exp", Fp32, 12>;
def ONNX_LogOp : ONNX_UnaryOp<"Log", Fp32, 12>;
def ONNX_SqrtOp : ONNX_UnaryOp<"Sqrt", Fp32, 4>;
def ONNX_ReciprocalOp : ONNX_UnaryOp<"Reciprocal", Fp32, 4>;
def ONNX_ErfOp : ONNX_UnaryOp<"Erf", Fp32, 20>;
def ONNX_SoftplusOp : ONNX_UnaryOp<"Softplus", Fp32, 26>;
def ONNX_TanOp : ONNX_UnaryOp<"Tan", Fp32, 20>;
def ONNX_AsinOp : ONNX_UnaryOp<"Asin", Fp32, 20>;
def ONNX_AcosOp : ONNX_UnaryOp<"Acos", Fp32, 20>;
def ONNX_AtanOp : ONNX_UnaryOp<"Atan", Fp32, 20>;
def ONNX_SinhOp : ONNX_UnaryOp<"Sinh", Fp32, 16>;
def ONNX_CoshOp : ONNX_UnaryOp<"Cosh", Fp32, 16>;
def ONNX_AsinhOp : ONNX_UnaryOp<"Asinh", Fp32, 18>;
def ONNX_AcoshOp : ONNX_UnaryOp<"Acosh", Fp32, 18>;
def ONNX_AtanhOp : ONNX_UnaryOp<"Atanh", Fp32, 18>;

//===-- Element-wise with broadcasting ------------------------------------===//

def ONNX_AddOp : ONNX_BroadcastOp<"Add">;
def ONNX_SubOp : ONNX_BroadcastOp<"Sub">;
def ONNX_MulOp : ONNX_BroadcastOp<"Mul">;
def ONNX_DivOp : ONNX_BroadcastOp<"Div", Promote, 4>;
def ONNX_MaxOp : ONNX_BroadcastOp<"Max">;
def ONNX_MinOp : ONNX_BroadcastOp<"Min">;
def ONNX_MeanOp : ONNX_BroadcastOp<"Mean">;
def ONNX_PReluOp : ONNX_BroadcastOp<"PRelu", Promote, 2>;
def ONNX_ModOp : ONNX_BroadcastOp<"Mod", Promote, 6>;
def ONNX_PowOp : ONNX_BroadcastOp<"Pow", Fp32, 24>;
def ONNX_SumOp : ONNX_BroadcastOp<"Sum", Fp32>;
def ONNX_WhereOp : ONNX_BroadcastOp<"Where">;

//===-- Predicates and bits -----------------------------------------------===//

def ONNX_AndOp : ONNX_PredicateOp<"And">;
def ONNX_OrOp : ONNX_PredicateOp<"Or">;
def ONNX_XorOp : ONNX_PredicateOp<"Xor">;
def ONNX_NotOp : ONNX_PredicateOp<"Not">;
def ONNX_EqualOp : ONNX_PredicateOp<"Equal">;
def ONNX_LessOp : ONNX_PredicateOp<"Less">;
def ONNX_GreaterOp : ONNX_PredicateOp<"Greater">;
def ONNX_LessOrEqualOp : ONNX_PredicateOp<"LessOrEqual">;
def ONNX_GreaterOrEqualOp : ONNX_PredicateOp<"GreaterOrEqual">;
def ONNX_IsNaNOp : ONNX_PredicateOp<"IsNaN">;
def ONNX_IsInfOp : ONNX_PredicateOp<"IsInf">;
def ONNX_BitShiftOp : ONNX_PredicateOp<"BitShift">;
def ONNX_BitwiseAndOp : ONNX_PredicateOp<"BitwiseAnd">;
def ONNX_BitwiseOrOp : ONNX_PredicateOp<"BitwiseOr">;
def ONNX_BitwiseXorOp : ONNX_PredicateOp<"BitwiseXor">;
def ONNX_BitwiseNotOp : ONNX_PredicateOp<"BitwiseNot">;

//===-- Types -------------------------------------------------------------===//

def ONNX_CastOp : ONNX_UnaryOp<"Cast", Never>;
def ONNX_CastLikeOp : ONNX_UnaryOp<"CastLike", Never>;

//===-- Reductions --------------------------------------------------------===//

def ONNX_ReduceSumOp : ONNX_ReduceOp<"ReduceSum">;
def ONNX_ReduceMeanOp : ONNX_ReduceOp<"ReduceMean">;
def ONNX_ReduceProdOp : ONNX_ReduceOp<"ReduceProd">;
def ONNX_ReduceSumSquareOp : ONNX_ReduceOp<"ReduceSumSquare", Fp32, 2>;
def ONNX_ReduceL1Op : ONNX_ReduceOp<"ReduceL1", Fp32, 2>;
def ONNX_ReduceL2Op : ONNX_ReduceOp<"ReduceL2", Fp32, 2>;
def ONNX_ReduceLogSumOp : ONNX_ReduceOp<"ReduceLogSum">;
def ONNX_ReduceLogSumExpOp : ONNX_ReduceOp<"ReduceLogSumExp", Fp32, 14>;
def ONNX_CumSumOp : ONNX_ReduceOp<"CumSum">;
def ONNX_ReduceMaxOp : ONNX_ReduceOp<"ReduceMax", Neutral>;
def ONNX_ReduceMinOp : ONNX_ReduceOp<"ReduceMin", Neutral>;
def ONNX_ArgMaxOp : ONNX_ReduceOp<"ArgMax", Neutral>;
def ONNX_ArgMinOp : ONNX_ReduceOp<"ArgMin", Neutral>;
def ONNX_TopKOp : ONNX_ReduceOp<"TopK", Neutral>;

//===-- Rows --------------------------------------------------------------===//

def ONNX_SoftmaxOp : ONNX_RowOp<"Softmax", 19>;
def ONNX_LogSoftmaxOp : ONNX_RowOp<"LogSoftmax", 16>;
def ONNX_HardmaxOp : ONNX_RowOp<"Hardmax", 2>;

//===-- Views: the same elements in the same order ------------------------===//

def ONNX_ReshapeOp : ONNX_ViewOp<"Reshape">;
def ONNX_FlattenOp : ONNX_ViewOp<"Flatten">;
def ONNX_SqueezeOp : ONNX_ViewOp<"Squeeze">;
def ONNX_UnsqueezeOp : ONNX_ViewOp<"Unsqueeze">;
def ONNX_IdentityOp : ONNX_ViewOp<"Identity">;

//===-- Moves: elements, unchanged, in other places -----------------------===//

def ONNX_TransposeOp : ONNX_MoveOp<"Transpose">;
def ONNX_SliceOp : ONNX_MoveOp<"Slice">;
def ONNX_SplitOp : ONNX_MoveOp<"Split">;
def ONNX_PadOp : ONNX_MoveOp<"Pad">;
def ONNX_ExpandOp : ONNX_MoveOp<"Expand">;
def ONNX_TileOp : ONNX_MoveOp<"Tile">;
def ONNX_TriluOp : ONNX_MoveOp<"Trilu">;
def ONNX_DepthToSpaceOp : ONNX_MoveOp<"DepthToSpace">;
def ONNX_SpaceToDepthOp : ONNX_MoveOp<"SpaceToDepth">;
def ONNX_GatherOp : ONNX_MoveOp<"Gather">;
def ONNX_GatherElementsOp : ONNX_MoveOp<"GatherElements">;
def ONNX_GatherNDOp : ONNX_MoveOp<"GatherND">;
def ONNX_ConcatOp : ONNX_MoveOp<"Concat", Promote>;
def ONNX_ScatterElementsOp : ONNX_MoveOp<"ScatterElements", Promote>;
def ONNX_ScatterNDOp : ONNX_MoveOp<"ScatterND", Promote>;

//===-- Products ----------------------------------------------------------===//

def ONNX_MatMulOp : ONNX_ProductOp<"MatMul">;
def ONNX_GemmOp : ONNX_ProductOp<"Gemm">;
def ONNX_EinsumOp : ONNX_ProductOp<"Einsum">;
def ONNX_ConvOp : ONNX_ProductOp<"Conv", ConvolutionWork>;
def ONNX_ConvTransposeOp : ONNX_ProductOp<"ConvTranspose", ConvolutionWork>;
def ONNX_AttentionOp : ONNX_ProductOp<"Attention">;

//===-- Pools -------------------------------------------------------------===//

def ONNX_MaxPoolOp : ONNX_PoolOp<"MaxPool", Neutral>;
def ONNX_GlobalMaxPoolOp : ONNX_PoolOp<"GlobalMaxPool", Neutral>;
def ONNX_AveragePoolOp : ONNX_PoolOp<"AveragePool", Fp32>;
def ONNX_GlobalAveragePoolOp : ONNX_PoolOp<"GlobalAveragePool", Fp32>;
def ONNX_ResizeOp : ONNX_PoolOp<"Resize", Fp32>;

//===-- Norms -------------------------------------------------------------===//

def ONNX_LayerNormalizationOp : ONNX_NormOp<"LayerNormalization", 8>;
def ONNX_GroupNormalizationOp : ONNX_NormOp<"GroupNormalization", 8>;
def ONNX_InstanceNormalizationOp : ONNX_NormOp<"InstanceNormalization", 8>;
def ONNX_RMSNormalizationOp : ONNX_NormOp<"RMSNormalization", 4>;
def ONNX_LpNormalizationOp : ONNX_NormOp<"LpNormalization", 6>;
def ONNX_LRNOp : ONNX_NormOp<"LRN", 30>;

//===-- Norms with running statistics: outputs 1 and 2 update state -------===//

def ONNX_BatchNormalizationOp : ONNX_NormOp<"BatchNormalization", 8>;

//===-- Losses ------------------------------------------------------------===//

def ONNX_SoftmaxCrossEntropyLossOp : ONNX_LossOp<"SoftmaxCrossEntropyLoss", 16>;
def ONNX_NegativeLogLikelihoodLossOp : ONNX_LossOp<"NegativeLogLikelihoodLoss", 0>;

//===-- Sources: constants and shapes -------------------------------------===//

def ONNX_ConstantOp : ONNX_SourceOp<"Constant">;
def ONNX_ConstantOfShapeOp : ONNX_SourceOp<"ConstantOfShape", MoveWork>;
def ONNX_ShapeOp : ONNX_SourceOp<"Shape">;
def ONNX_SizeOp : ONNX_SourceOp<"Size">;
def ONNX_RangeOp : ONNX_SourceOp<"Range", MoveWork>;
def ONNX_EyeLikeOp : ONNX_SourceOp<"EyeLike", MoveWork>;
def ONNX_OneHotOp : ONNX_SourceOp<"OneHot", MoveWork>;

//===-- Random ------------------------------------------------------------===//

def ONNX_DropoutOp : ONNX_RandomOp<"Dropout">;
def ONNX_RandomNormalOp : ONNX_RandomOp<"RandomNormal", Never>;
def ONNX_RandomNormalLikeOp : ONNX_RandomOp<"RandomNormalLike", Never>;
def ONNX_RandomUniformOp : ONNX_RandomOp<"RandomUniform", Never>;
def ONNX_RandomUniformLikeOp : ONNX_RandomOp<"RandomUniformLike", Never>;
def ONNX_BernoulliOp : ONNX_RandomOp<"Bernoulli", Never>;
def ONNX_MultinomialOp : ONNX_RandomOp<"Multinomial", Never>;

//===-- Control flow ------------------------------------------------------===//

def ONNX_IfOp : ONNX_ControlOp<"If">;
def ONNX_LoopOp : ONNX_ControlOp<"Loop">;
def ONNX_ScanOp : ONNX_ControlOp<"Scan">;

#endif
