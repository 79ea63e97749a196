//===- OnnxBase.td - dialect, types, attributes and interface of `onnx` --------===//
#ifndef RECAST_ONNX_BASE
#define RECAST_ONNX_BASE

include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/BuiltinAttributeInterfaces.td"
include "mlir/IR/OpBase.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def ONNX_Dialect : Dialect {
  let name = "onnx";
  let cppNamespace = "::recast::onnx_ir";
  let summary = "ONNX graphs, as they are in the file";
  let description = [{
    One operation for each ONNX node. Inputs and outputs keep ONNX's order; an input that is left out is the result of
    `onnx.absent`. ONNX attributes keep their names and are discardable attributes; what recast itself keeps on an
    operation has the prefix `onnx.`:

    | attribute | holds |
    |---|---|
    | `onnx.name` | the node's name |
    | `onnx.outputs` | the names of its results |
    | `onnx.attr_order` | the order of its attributes, where it is not the alphabetical one |
    | `onnx.graphs` | for each region, the attribute that it was and its names (see GraphInfo.h) |
    | `onnx.rest` | fields of the protobuf message that nothing here interprets, by field name |
    | `onnx.overload` | the overload of a local function that is called |
  }];
  let useDefaultTypePrinterParser = 1;
  let useDefaultAttributePrinterParser = 1;
  let extraClassDeclaration = "void registerOperations();";
}

class ONNX_Type<string name, string typeMnemonic> : TypeDef<ONNX_Dialect, name> { let mnemonic = typeMnemonic; }

def ONNX_StringType : ONNX_Type<"String", "string"> {
  let summary = "Element type of string tensors";
}
def ONNX_UnknownType : ONNX_Type<"Unknown", "unknown"> {
  let summary = "The type of a value that no rule infers: outputs of operators from other domains";
}
def ONNX_AbsentType : ONNX_Type<"Absent", "absent_type"> {
  let summary = "The type of an optional input or output that is left out";
}
def ONNX_OpaqueType : ONNX_Type<"Opaque", "opaque"> {
  let summary = "Sequence, optional, map and sparse tensor types: a serialised TypeProto";
  let parameters = (ins "::mlir::StringAttr":$proto);
  let assemblyFormat = "`<` $proto `>`";
}

class ONNX_Attr<string name, string attrMnemonic, list<Trait> traits = []> : AttrDef<ONNX_Dialect, name, traits> {
  let mnemonic = attrMnemonic;
}

def ONNX_DimsAttr : ONNX_Attr<"Dims", "dims"> {
  let summary = "Names of symbolic dimensions: the encoding of a tensor type, one string a dimension";
  let description = [{
    `tensor<?x20xf32, #onnx.dims<"batch", "">>`. A fixed dimension has the name "". Part of the type, so that every
    value knows its symbols and two dimensions with one name are known to be equal.
  }];
  let parameters = (ins ArrayRefParameter<"::mlir::StringAttr">:$names);
  let assemblyFormat = "`<` $names `>`";
}

def ONNX_TensorAttr : ONNX_Attr<"Tensor", "tensor"> {
  let summary = "A TensorProto: type, data and how the file stores them";
  let description = [{
    `payload` is a dense elements attribute (small tensors), a dense resource (larger ones, usually a view into the
    mapped file), an array of strings, or a string (a serialised SparseTensorProto). `extra` holds what only the file
    needs: `name`, `encoding = "typed"` where the data was not in raw_data, `external` (key and value pairs), `rest`.
  }];
  let parameters = (ins "::mlir::RankedTensorType":$type, "::mlir::Attribute":$payload,
                        "::mlir::DictionaryAttr":$extra);
  let assemblyFormat = "`<` $type `,` $payload `,` $extra `>`";
}

def ONNX_RefAttr : ONNX_Attr<"Ref", "ref"> {
  let summary = "An attribute of a local function's node that takes its value from the call";
  let parameters = (ins "::mlir::StringAttr":$name, "int64_t":$kind);
  let assemblyFormat = "`<` $name `,` $kind `>`";
}

def ONNX_ProtoAttr : ONNX_Attr<"Proto", "proto"> {
  let summary = "A serialised AttributeProto of a kind that nothing here interprets (types, sparse tensors, lists)";
  let parameters = (ins "::mlir::StringAttr":$bytes);
  let assemblyFormat = "`<` $bytes `>`";
}

// Facts that passes and planners ask for. They print in the generated operator reference.
class AutocastClass<string value> { string name = value; }
// Products: run in the low type, sum in fp32.
def Low : AutocastClass<"Low">;
// Sums, norms, losses, exponentials: stay in fp32.
def Fp32 : AutocastClass<"Fp32">;
// Several inputs: run in the widest type among them.
def Promote : AutocastClass<"Promote">;
// Run in the type they are given.
def Neutral : AutocastClass<"Neutral">;
// No floating-point computation.
def Never : AutocastClass<"Never">;

// What an operator's time goes into, and `flops`: arithmetic operations an element, where ir/cost has no formula.
// A convention: a function counts what a usual polynomial for it takes, division and square root count 4.
class WorkClass<string value> { string name = value; }
// No step at all: a view, a constant, a shape.
def NothingWork : WorkClass<"Nothing">;
// Elements, unchanged, in other places; values that are only written.
def MoveWork : WorkClass<"Move">;
// `flops` for each element of the first result.
def ElementwiseWork : WorkClass<"Elementwise">;
// `flops` for each element of the largest operand: sums, softmax, norms, pools.
def ReductionWork : WorkClass<"Reduction">;
// Products of matrices.
def ProductWork : WorkClass<"Product">;
def ConvolutionWork : WorkClass<"Convolution">;
// What its bodies cost.
def ControlWork : WorkClass<"Control">;
// Counted by its bytes.
def UnknownWork : WorkClass<"Unknown">;

def ONNX_NodeInterface : OpInterface<"NodeInterface"> {
  let cppNamespace = "::recast::onnx_ir";
  let description = "An operation that stands for a NodeProto.";
  let methods = [
    StaticInterfaceMethod<"Facts of the operator class.", "::recast::onnx_ir::Facts", "facts", (ins)>,
    InterfaceMethod<"Types of the results where the operator has a rule of its own; false: ask the ONNX schema.",
                    "bool", "inferTypes", (ins "::llvm::SmallVectorImpl<::mlir::Type> &":$types),
                    /*methodBody=*/"", /*defaultImplementation=*/"return false;">,
  ];
}

class ONNX_Op<string mnemonic, list<Trait> traits = []> : Op<ONNX_Dialect, mnemonic, traits>;

// A node: any number of inputs and outputs, attributes verbatim.
class ONNX_NodeOp<string mnemonic, AutocastClass autocast, bit cheap, bit view, bit effects, list<Trait> traits,
                  WorkClass work, int flops = 0>
    : ONNX_Op<mnemonic, traits # !if(effects, []<Trait>, [Pure]) # [DeclareOpInterfaceMethods<ONNX_NodeInterface>]> {
  let arguments = (ins Variadic<AnyType>:$inputs);
  let results = (outs Variadic<AnyType>:$outputs);
  let assemblyFormat = "`(` $inputs `)` attr-dict `:` functional-type($inputs, $outputs)";
  let extraClassDefinition = [{
    ::recast::onnx_ir::Facts $cppClass::facts() {
      return {::recast::onnx_ir::AutocastClass::}] # autocast.name # ", " # cheap # ", " # view # ", " # effects #
      ", ::recast::onnx_ir::Work::" # work.name # ", " # flops # [{};
    }
  }];
}

#endif
