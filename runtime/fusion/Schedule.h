// A region as loops: phases that run one after another, each over the elements of one tensor in rows. Nothing here
// depends on a processor; Emit.h and later a GPU's emitter read it.
#pragma once
#include "runtime/fusion/Map.h"
#include "runtime/fusion/Region.h"
#include "runtime/kernels/Kernel.h"

namespace recast::fusion {

/// How often a node is computed.
enum class Level : uint8_t {
  Scalar,  ///< Once.
  Row,     ///< Once a row.
  Element, ///< For each element.
};

struct Node {
  enum Kind : uint8_t {
    Load,    ///< Operand `index` at `map`.
    Slot,    ///< Slot `index` of the workspace at `map`: a value of an earlier phase.
    Combine, ///< The reduction (`op`) of slot `index` over its chunks, in their order, at `map`.
    Compute, ///< `op` of `args`; Constant and Counter (at `map`) too.
    Reduce,  ///< `op` of args[0] over the row: a sum is F64 or I64.
  } kind = Compute;
  Op op = Op::Input;
  DType type = DType::Undefined;
  std::vector<int> args = {};
  Map map = {};
  int index = 0;
  double number = 0;
  int64_t integer = 0;
  Level level = Level::Scalar;
  /// The pass over the row from which on it can be computed: 0 where it needs no reduction of the row.
  int pass = 0;
};

/// Writes a node to an output or a slot, in the last pass over the row.
struct Store {
  int node;
  bool isSlot;
  int index;
  Map map;
};

/// Takes a node's elements into the chunk's part of a slot, each where `kept` says, in the last pass over the row.
struct Accumulation {
  int node;
  Op op;
  int slot;
  Map kept;
};

struct Phase {
  int64_t count = 0; ///< Elements.
  int64_t inner = 0; ///< Elements of a row; the last may have fewer.
  int64_t rows() const { return (count + inner - 1) / inner; }
  /// Rows of a range: ranges [begin, end) that a phase is called with count in these. Where there are accumulations a
  /// range is a chunk with a part of each slot of its own.
  int64_t rowsPerRange = 1;
  int64_t ranges() const { return (rows() + rowsPerRange - 1) / rowsPerRange; }
  int passes = 1;
  std::vector<Node> nodes; ///< Arguments first.
  std::vector<Store> stores;
  std::vector<Accumulation> accumulations;
};

struct SlotInfo {
  DType type;
  int64_t elems, chunks;
  size_t offset; ///< In the workspace.
};

struct Program {
  std::vector<Phase> phases;
  std::vector<SlotInfo> slots;
  size_t workspaceBytes = 0;
};

/// Where a reduction is computed, whatever else is in its region: this, and so the order of a sum, follows from its
/// dims and axes alone.
struct ReductionForm {
  enum Kind : uint8_t {
    None,  ///< In no region.
    Row,   ///< Over rows of `row` elements that lie side by side.
    Across ///< Over a whole tensor in chunks.
  } kind = None;
  int64_t row = 0; ///< Elements of a row of the loop. Across: 0 for any blocks of all elements.
};
ReductionForm formOf(std::span<const int64_t> dims, std::span<const int64_t> axes);

/// False, and a reason, where there are no such loops.
bool schedule(const Region &region, Program &program, std::string &reason);
/// Outputs that may take over the memory of inputs.
std::vector<InPlace> inPlaceOf(const Program &program, size_t inputs, size_t outputs);

} // namespace recast::fusion
