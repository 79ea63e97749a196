// PTX as it is executed: functions of instructions whose operands are slots of a thread's registers.
#pragma once
#include "runtime/plan/Status.h"
#include "tests/ptx/Operations.h"
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace recast::ptx {

enum class Space : uint8_t { Generic, Global, Shared, Param };

enum class Kind : uint8_t {
  Compute,     ///< to = compute(a, b, c)
  Pack,        ///< One register from several.
  Unpack,      ///< Several registers from one.
  Load,        ///< list = [a + offset]
  Store,       ///< [a + offset] = list
  Atomic,      ///< to = [a + offset]; [a + offset] = compute(that, b)
  Branch,      ///< To instruction `target`.
  BranchTable, ///< To targets[a].
  Call,        ///< callee, with bytes of the caller's parameters.
  Return,
  BlockBarrier, ///< Number a.
  WarpBarrier,  ///< Lanes of the mask a.
  Shuffle,      ///< to = a of another lane; b and c say which; `mask`.
  Ballot,       ///< to = the lanes whose a is true; `mask`.
};
enum class Exchange : uint8_t { Index, Butterfly };

inline constexpr uint32_t kNone = ~0u;

/// Bytes of the parameters of a function, or of its result.
struct Bytes {
  uint32_t offset = 0, size = 0;
};

struct Function;

struct Instruction {
  Kind kind = Kind::Compute;
  Space space = Space::Generic;
  Exchange exchange = Exchange::Index;
  bool isGuardNegated = false, isSigned = false; ///< The predicate; what is loaded.
  uint8_t elementBytes = 0;                      ///< Of each element that is loaded, stored or packed.
  uint8_t elements = 0;                          ///< In `list`.
  uint32_t line = 0;
  uint32_t guard = kNone; ///< It is only executed where this predicate is true.
  uint32_t to = kNone, a = kNone, b = kNone, c = kNone, mask = kNone;
  uint32_t target = 0;
  uint64_t keeps = 0; ///< Bits that `to`, or each of `list`, has.
  int64_t offset = 0;
  Compute compute = nullptr;
  std::array<uint32_t, 4> list = {kNone, kNone, kNone, kNone}; ///< kNone: nobody wants the element.
  std::vector<uint32_t> targets;
  const Function *callee = nullptr;
  std::vector<Bytes> arguments; ///< Of a call: where they lie among the caller's parameters, the result last.
};

/// What slots of every thread hold at the start.
enum Special : uint32_t { kThread, kThreads, kBlock, kBlocks, kLane, kSpecials };

struct Function {
  std::string name;
  bool isEntry = false;
  std::vector<Bytes> parameters, results;
  uint32_t inputBytes = 0; ///< Of the parameters.
  uint32_t paramBytes = 0; ///< With its result, and with those of what it calls.
  uint32_t maxThreads = 1024;
  std::vector<uint64_t> slots; ///< Registers, Special, constants: their first values.
  std::vector<Instruction> code;
};

/// A variable in shared memory.
struct SharedVariable {
  uint32_t offset = 0, bytes = 0;
};

class Module {
public:
  /// Fails, naming the line, on whatever it does not know.
  static Result<std::unique_ptr<Module>> parse(std::string_view text);

  std::map<std::string, std::unique_ptr<Function>, std::less<>> functions;
  std::vector<SharedVariable> shared; ///< Bytes between them belong to nothing.
  uint32_t sharedBytes = 0;
  struct Global {
    std::unique_ptr<uint64_t[]> data; ///< Aligned to 8 bytes.
    size_t bytes = 0;
    bool isConstant = false;
  };
  std::vector<Global> globals;

  const Function *entry(std::string_view name) const {
    auto found = functions.find(name);
    return found != functions.end() && found->second->isEntry ? found->second.get() : nullptr;
  }
};

} // namespace recast::ptx
