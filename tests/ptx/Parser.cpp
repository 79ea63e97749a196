#include "tests/ptx/Lexer.h"
#include "tests/ptx/Module.h"
#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <unordered_map>

namespace recast::ptx {
namespace {

/// Thrown by the parser, and caught where it starts.
struct Failure {
  uint32_t line;
  std::string what;
};

/// Bits of ".b32", ".u64", ".f16" or "b32"; 1 of a predicate, 0 where it is no type.
int bitsOf(std::string_view type) {
  if (type.starts_with('.'))
    type.remove_prefix(1);
  if (type == "pred")
    return 1;
  if (type.size() < 2 || std::string_view("busf").find(type[0]) == std::string_view::npos)
    return 0;
  for (int bits : {8, 16, 32, 64})
    if (type.substr(1) == std::to_string(bits))
      return bits;
  return 0;
}
uint64_t maskOf(int bits) { return ~uint64_t(0) >> (64 - bits); }

std::vector<std::string_view> split(std::string_view opcode) {
  std::vector<std::string_view> parts;
  for (size_t at = 0; at <= opcode.size();) {
    size_t end = std::min(opcode.find('.', at), opcode.size());
    parts.push_back(opcode.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

/// What a register holds that nobody has written: a NaN of every type.
constexpr uint64_t kPoison = 0xfff7a5a5fff7a5a5;
/// Between variables of shared memory, so that what runs over the end of one is seen.
constexpr uint32_t kRedZone = 64;

struct Operand {
  enum Kind : uint8_t { Slot, Memory, List, Label, Nothing } kind = Slot;
  uint32_t slot = kNone;
  int bits = 64;          ///< Of a register.
  int64_t offset = 0;     ///< Of Memory.
  std::string_view label; ///< Maybe of something that comes later.
  std::vector<Operand> list;
};

/// A declared register, or what has an address.
struct Register {
  uint32_t slot;
  int bits;
};
struct Symbol {
  uint64_t address = 0;
  Bytes bytes; ///< Of a parameter.
};
using Symbols = std::map<std::string_view, Symbol>;

class Parser {
public:
  Parser(std::string_view text, Module &module) : tokens(tokenise(text)), module(module) {}

  void parse() {
    expect(".version");
    next(), next(); // "7" and ".8".
    expect(".target");
    while (next(), accept(","))
      ;
    expect(".address_size");
    if (next().number != 64)
      fail("addresses are of 64 bits");
    while (peek().kind != Token::End)
      parseTopLevel();
    for (auto &[instruction, name] : calls) {
      auto found = module.functions.find(name);
      if (found == module.functions.end())
        throw Failure{instruction.first->code[instruction.second].line, "there is no function " + std::string(name)};
      Instruction &call = instruction.first->code[instruction.second];
      call.callee = found->second.get();
      checkCall(call);
    }
  }

private:
  [[noreturn]] void fail(const std::string &what) const { throw Failure{peek().line, what}; }
  const Token &peek(size_t ahead = 0) const { return tokens[std::min(at + ahead, tokens.size() - 1)]; }
  const Token &next() { return tokens[std::min(at++, tokens.size() - 1)]; }
  bool accept(std::string_view text) {
    if (peek().text != text || peek().kind == Token::Text)
      return false;
    return ++at, true;
  }
  void expect(std::string_view text) {
    if (!accept(text))
      fail("'" + std::string(text) + "' is expected, not '" + std::string(peek().text) + "'");
  }
  std::string_view word() {
    if (peek().kind != Token::Word)
      fail("a name is expected, not '" + std::string(peek().text) + "'");
    return next().text;
  }
  int64_t integer() {
    bool isNegative = accept("-");
    if (peek().kind != Token::Number)
      fail("a number is expected, not '" + std::string(peek().text) + "'");
    auto value = static_cast<int64_t>(next().number);
    return isNegative ? -value : value;
  }

  void parseTopLevel() {
    if (accept(".visible") || accept(".weak"))
      return parseTopLevel();
    if (accept(".entry"))
      return parseFunction(true);
    if (accept(".func"))
      return parseFunction(false);
    if (accept(".shared"))
      return parseShared(moduleSymbols);
    if (peek().text == ".global" || peek().text == ".const")
      return parseGlobal();
    fail("the directive " + std::string(peek().text) + " is not known");
  }

  struct Declared {
    std::string_view name;
    uint32_t bytes, alignment, elementBytes;
  };
  /// [.ptr .align 1] [.align 8] .b8 name[40]
  Declared declaration() {
    uint32_t alignment = 0;
    if (accept(".align"))
      alignment = static_cast<uint32_t>(integer());
    int bits = bitsOf(peek().text);
    if (bits < 8)
      fail("the type " + std::string(peek().text) + " is not known");
    next();
    if (accept(".ptr")) { // What a pointer points at.
      if (peek().text == ".global")
        next();
      expect(".align"), integer();
    }
    Declared declared{word(), static_cast<uint32_t>(bits / 8), 0, static_cast<uint32_t>(bits / 8)};
    if (accept("[")) {
      declared.bytes *= static_cast<uint32_t>(integer());
      expect("]");
    }
    declared.alignment = alignment ? alignment : declared.elementBytes;
    return declared;
  }

  void parseShared(Symbols &symbols) {
    Declared d = declaration();
    expect(";");
    uint32_t offset = (module.sharedBytes + kRedZone + d.alignment - 1) / d.alignment * d.alignment;
    module.shared.push_back({offset, d.bytes});
    module.sharedBytes = offset + d.bytes;
    symbols[d.name] = {offset, {}};
  }

  void parseGlobal() {
    bool isConstant = next().text == ".const";
    Declared d = declaration();
    if (d.alignment > 8)
      fail("an alignment of more than 8 bytes");
    Module::Global global{std::make_unique<uint64_t[]>((d.bytes + 7) / 8), d.bytes, isConstant};
    auto *bytes = reinterpret_cast<std::byte *>(global.data.get());
    if (accept("=")) {
      bool isList = accept("{");
      for (uint32_t i = 0; !isList || !accept("}"); i += d.elementBytes) {
        if (i + d.elementBytes > d.bytes)
          fail("more numbers than " + std::string(d.name) + " has");
        int64_t value = integer();
        std::memcpy(bytes + i, &value, d.elementBytes);
        if (!isList)
          break;
        accept(",");
      }
    }
    expect(";");
    moduleSymbols[d.name] = {reinterpret_cast<uint64_t>(bytes), {}};
    module.globals.push_back(std::move(global));
  }

  // Functions --------------------------------------------------------------------------------------------------------

  Bytes reserve(const Declared &d) {
    function->paramBytes = (function->paramBytes + d.alignment - 1) / d.alignment * d.alignment;
    Bytes bytes{function->paramBytes, d.bytes};
    function->paramBytes += d.bytes;
    return bytes;
  }
  /// (.param .b64 name, ...)
  std::vector<Bytes> parameters() {
    std::vector<Bytes> list;
    expect("(");
    while (!accept(")")) {
      expect(".param");
      Declared d = declaration();
      list.push_back(reserve(d));
      scopes.back()[d.name] = {list.back().offset, list.back()};
      accept(",");
    }
    return list;
  }

  void parseFunction(bool isEntry) {
    auto made = std::make_unique<Function>();
    function = made.get();
    function->isEntry = isEntry;
    registers.clear(), constants.clear(), labels.clear(), tables.clear(), jumps.clear();
    scopes.assign(1, {});
    // Results come first in the text, and after the parameters in memory.
    size_t results = at;
    if (peek().text == "(")
      while (next().text != ")")
        ;
    function->name = word();
    function->parameters = parameters();
    function->inputBytes = function->paramBytes;
    if (tokens[results].text == "(") {
      size_t after = at;
      at = results;
      function->results = parameters();
      at = after;
    }
    while (peek().text != "{" && peek().text != ";") {
      if (accept(".maxntid"))
        function->maxThreads = static_cast<uint32_t>(integer());
      else if (accept(".minnctapersm"))
        integer();
      else if (!accept(".noreturn"))
        fail("the directive " + std::string(peek().text) + " is not known");
    }
    if (accept(";")) // Declared; defined later.
      return;
    for (uint32_t special = 0; special < kSpecials; ++special)
      function->slots.push_back(0);
    for (auto [name, special] : {std::pair{"%tid.x", kThread},
                                 {"%ntid.x", kThreads},
                                 {"%ctaid.x", kBlock},
                                 {"%nctaid.x", kBlocks},
                                 {"%laneid", kLane}})
      registers[name] = {special, 32};
    expect("{");
    parseBody();
    for (auto &[instruction, label] : jumps) {
      auto found = labels.find(label.first);
      if (found == labels.end())
        throw Failure{label.second, "there is no label " + std::string(label.first)};
      Instruction &jump = function->code[instruction];
      (jump.kind == Kind::BranchTable ? jump.targets.emplace_back() : jump.target) = found->second;
    }
    Instruction end;
    end.kind = Kind::Return;
    end.line = peek().line;
    function->code.push_back(end);
    module.functions[function->name] = std::move(made);
  }

  /// Up to the closing brace.
  void parseBody() {
    while (!accept("}")) {
      if (accept("{")) { // Around a call.
        scopes.emplace_back();
        parseBody();
        scopes.pop_back();
      } else if (accept(".reg")) {
        parseRegisters();
      } else if (accept(".param")) {
        Declared d = declaration();
        Bytes bytes = reserve(d);
        scopes.back()[d.name] = {bytes.offset, bytes};
        expect(";");
      } else if (accept(".shared")) {
        parseShared(scopes.back());
      } else if (accept(".pragma")) {
        if (next().text != "\"nounroll\"")
          fail("a pragma that is not known");
        expect(";");
      } else if (peek().kind == Token::Word && peek(1).text == ":") {
        parseLabel();
      } else {
        parseInstruction();
      }
    }
  }

  void parseRegisters() {
    int bits = bitsOf(peek().text);
    if (!bits)
      fail("the type " + std::string(peek().text) + " is not known");
    next();
    do {
      std::string name(word());
      int64_t count = -1;
      if (accept("<")) {
        count = integer();
        expect(">");
      }
      for (int64_t i = 0; i < std::max<int64_t>(count, 1); ++i) {
        registers[count < 0 ? name : name + std::to_string(i)] = {static_cast<uint32_t>(function->slots.size()), bits};
        function->slots.push_back(kPoison & maskOf(bits));
      }
    } while (accept(","));
    expect(";");
  }

  void parseLabel() {
    std::string_view name = word();
    expect(":");
    if (!accept(".branchtargets")) {
      labels[name] = static_cast<uint32_t>(function->code.size());
      return;
    }
    do
      tables[name].push_back(word());
    while (accept(","));
    expect(";");
  }

  // Operands ---------------------------------------------------------------------------------------------------------

  uint32_t constant(uint64_t value) {
    auto [found, isNew] = constants.try_emplace(value, static_cast<uint32_t>(function->slots.size()));
    if (isNew)
      function->slots.push_back(value);
    return found->second;
  }
  const Symbol *findSymbol(std::string_view name) const {
    for (size_t i = scopes.size(); i-- > 0;)
      if (auto found = scopes[i].find(name); found != scopes[i].end())
        return &found->second;
    auto found = moduleSymbols.find(name);
    return found == moduleSymbols.end() ? nullptr : &found->second;
  }
  /// A register, a number or the address of a variable.
  Operand simple() {
    Operand operand;
    if (peek().kind == Token::Number || peek().text == "-") {
      operand.slot = constant(static_cast<uint64_t>(integer()));
      return operand;
    }
    std::string_view name = word();
    if (name == "_") {
      operand.kind = Operand::Nothing;
    } else if (auto found = registers.find(std::string(name)); found != registers.end()) {
      operand.slot = found->second.slot;
      operand.bits = found->second.bits;
    } else if (name.starts_with('%')) {
      fail("the register " + std::string(name) + " is not known");
    } else if (const Symbol *symbol = findSymbol(name)) {
      operand.slot = constant(symbol->address + static_cast<uint64_t>(accept("+") ? integer() : 0));
    } else {
      operand.kind = Operand::Label;
      operand.label = name;
    }
    return operand;
  }
  Operand operand() {
    if (accept("[")) {
      Operand memory = simple();
      if (memory.kind != Operand::Slot)
        fail("there is no variable " + std::string(memory.label));
      memory.kind = Operand::Memory;
      if (accept("+"))
        memory.offset = integer();
      expect("]");
      return memory;
    }
    if (!accept("{"))
      return simple();
    Operand list;
    list.kind = Operand::List;
    while (!accept("}")) {
      list.list.push_back(simple());
      accept(",");
    }
    if (list.list.size() > 4)
      fail("a list of more than 4 registers");
    return list;
  }

  // Instructions -----------------------------------------------------------------------------------------------------

  void parseInstruction() {
    Instruction instruction;
    instruction.line = peek().line;
    if (accept("@")) {
      instruction.isGuardNegated = accept("!");
      instruction.guard = slotOf(simple());
    }
    std::string opcode(word());
    if (opcode.starts_with('.'))
      throw Failure{instruction.line, "the directive " + opcode + " is not known"};
    if (opcode == "call.uni" || opcode == "call")
      return parseCall(instruction);
    std::vector<Operand> operands;
    while (!accept(";")) {
      operands.push_back(operand());
      if (peek().text != ";")
        expect(",");
    }
    std::vector<std::string_view> parts = split(opcode);
    auto known = [&](bool isTrue) {
      if (!isTrue)
        throw Failure{instruction.line, "the instruction " + opcode + ", or this form of it, is not known"};
    };
    auto branches = [&](std::string_view label) {
      jumps.push_back({function->code.size(), {label, instruction.line}});
    };
    if (opcode == "bra" || opcode == "bra.uni") {
      known(operands.size() == 1 && operands[0].kind == Operand::Label);
      instruction.kind = Kind::Branch;
      branches(operands[0].label);
    } else if (opcode == "brx.idx") {
      known(operands.size() == 2 && operands[1].kind == Operand::Label && tables.contains(operands[1].label));
      instruction.kind = Kind::BranchTable;
      instruction.a = slotOf(operands[0]);
      for (std::string_view label : tables[operands[1].label])
        branches(label);
    } else if (opcode == "ret" || opcode == "exit") {
      known(operands.empty() && (opcode == "ret" || function->isEntry));
      instruction.kind = Kind::Return;
    } else if (opcode == "bar.sync" || opcode == "bar.warp.sync") {
      known(operands.size() == 1);
      instruction.kind = opcode == "bar.sync" ? Kind::BlockBarrier : Kind::WarpBarrier;
      (opcode == "bar.sync" ? instruction.a : instruction.mask) = slotOf(operands[0]);
    } else if (opcode.starts_with("shfl.sync.")) {
      static constexpr std::string_view kModes[] = {"idx", "bfly"};
      auto mode = std::ranges::find(kModes, parts[2]);
      known(parts.size() == 4 && parts[3] == "b32" && mode != std::end(kModes) && operands.size() == 5);
      instruction.kind = Kind::Shuffle;
      instruction.exchange = static_cast<Exchange>(mode - std::begin(kModes));
      setTo(instruction, operands[0]);
      instruction.a = slotOf(operands[1]), instruction.b = slotOf(operands[2]), instruction.c = slotOf(operands[3]);
      instruction.mask = slotOf(operands[4]);
    } else if (opcode == "vote.sync.ballot.b32") {
      known(operands.size() == 3);
      instruction.kind = Kind::Ballot;
      setTo(instruction, operands[0]);
      instruction.a = slotOf(operands[1]), instruction.mask = slotOf(operands[2]);
    } else if (parts[0] == "ld" || parts[0] == "st") {
      known(operands.size() == 2 && parts.size() > 1);
      bool isLoad = parts[0] == "ld";
      instruction.kind = isLoad ? Kind::Load : Kind::Store;
      size_t vector = 1;
      for (std::string_view part : std::span(parts).subspan(1, parts.size() - 2))
        known(setSpace(instruction, part) || part == "nc" || takeVector(part, vector));
      setAccess(instruction, parts.back(), operands[isLoad ? 1 : 0]);
      Operand &value = operands[isLoad ? 0 : 1];
      std::vector<Operand> values = value.kind == Operand::List ? value.list : std::vector{value};
      known(values.size() == vector && instruction.elementBytes);
      setList(instruction, values, isLoad);
    } else if (parts[0] == "atom") {
      known(parts.size() == 4 && operands.size() == 3 && setSpace(instruction, parts[1]));
      instruction.kind = Kind::Atomic;
      setAccess(instruction, parts[3], operands[1]);
      Operation operation = findOperation(std::string(parts[2]) + "." + std::string(parts[3]));
      known(operation.compute && operation.operands == 2 && instruction.elementBytes >= 4);
      instruction.compute = operation.compute;
      setTo(instruction, operands[0]);
      instruction.b = slotOf(operands[2]);
    } else if (parts[0] == "mov" && parts.size() == 2 && operands.size() == 2 && operands[0].kind == Operand::List) {
      instruction.kind = Kind::Unpack;
      setPieces(instruction, parts[1], operands[0].list);
      setList(instruction, operands[0].list, true);
      instruction.a = slotOf(operands[1]);
    } else if (parts[0] == "mov" && parts.size() == 2 && operands.size() == 2 && operands[1].kind == Operand::List) {
      instruction.kind = Kind::Pack;
      setPieces(instruction, parts[1], operands[1].list);
      setList(instruction, operands[1].list, false);
      setTo(instruction, operands[0]);
    } else {
      Operation operation = findOperation(opcode);
      known(operation.compute && static_cast<int>(operands.size()) == operation.operands + 1);
      instruction.compute = operation.compute;
      setTo(instruction, operands[0]);
      uint32_t *fields[] = {&instruction.a, &instruction.b, &instruction.c};
      for (uint32_t *field : fields) // What an operation does not take is read all the same.
        *field = kThread;
      for (int i = 0; i < operation.operands; ++i)
        *fields[i] = slotOf(operands[static_cast<size_t>(i) + 1]);
    }
    function->code.push_back(std::move(instruction));
  }

  uint32_t slotOf(const Operand &operand) const {
    if (operand.kind != Operand::Slot)
      fail(operand.kind == Operand::Label ? "there is no " + std::string(operand.label)
                                          : "a register or a number is expected");
    return operand.slot;
  }
  void setTo(Instruction &instruction, const Operand &operand) const {
    instruction.to = slotOf(operand);
    instruction.keeps = maskOf(operand.bits);
  }
  static bool setSpace(Instruction &instruction, std::string_view name) {
    instruction.space = name == "global"   ? Space::Global
                        : name == "shared" ? Space::Shared
                        : name == "param"  ? Space::Param
                                           : instruction.space;
    return name == "global" || name == "shared" || name == "param";
  }
  static bool takeVector(std::string_view name, size_t &count) {
    count = name == "v2" ? 2 : name == "v4" ? 4 : count;
    return name == "v2" || name == "v4";
  }
  void setAccess(Instruction &instruction, std::string_view type, const Operand &address) const {
    if (address.kind != Operand::Memory)
      fail("an address in brackets is expected");
    instruction.elementBytes = static_cast<uint8_t>(bitsOf(type) / 8);
    instruction.isSigned = type[0] == 's';
    instruction.a = address.slot;
    instruction.offset = address.offset;
  }
  void setList(Instruction &instruction, const std::vector<Operand> &values, bool isWritten) const {
    instruction.elements = static_cast<uint8_t>(values.size());
    for (size_t i = 0; i < values.size(); ++i)
      if (!isWritten || values[i].kind != Operand::Nothing) {
        instruction.list[i] = slotOf(values[i]);
        instruction.keeps = maskOf(values[i].bits);
      }
  }
  /// mov.b64 of two registers has pieces of 32 bits.
  void setPieces(Instruction &instruction, std::string_view type, const std::vector<Operand> &pieces) const {
    int bits = bitsOf(type) / static_cast<int>(pieces.size());
    if (bits % 8)
      fail("pieces of " + std::to_string(bits) + " bits");
    instruction.elementBytes = static_cast<uint8_t>(bits / 8);
  }

  /// call.uni (result), name, (parameter, ...);
  void parseCall(Instruction &instruction) {
    auto bytesOf = [&] {
      std::string_view name = word();
      const Symbol *symbol = findSymbol(name);
      if (!symbol || !symbol->bytes.size)
        fail("there is no parameter " + std::string(name));
      return symbol->bytes;
    };
    std::optional<Bytes> result;
    if (accept("(")) {
      result = bytesOf();
      expect(")"), expect(",");
    }
    std::string_view name = word();
    if (accept(",")) {
      expect("(");
      while (!accept(")")) {
        instruction.arguments.push_back(bytesOf());
        accept(",");
      }
    }
    expect(";");
    if (result)
      instruction.arguments.push_back(*result);
    instruction.kind = Kind::Call;
    calls.push_back({{function, function->code.size()}, name});
    function->code.push_back(std::move(instruction));
  }
  static void checkCall(const Instruction &call) {
    std::vector<Bytes> wanted = call.callee->parameters;
    wanted.insert(wanted.end(), call.callee->results.begin(), call.callee->results.end());
    if (!std::ranges::equal(wanted, call.arguments, {}, &Bytes::size, &Bytes::size))
      throw Failure{call.line, call.callee->name + " has other parameters"};
  }

  std::vector<Token> tokens;
  size_t at = 0;
  Module &module;
  Symbols moduleSymbols;
  Function *function = nullptr;
  std::vector<Symbols> scopes; ///< Of the function, the innermost last.
  std::unordered_map<std::string, Register> registers;
  std::unordered_map<uint64_t, uint32_t> constants;
  std::map<std::string_view, uint32_t> labels;
  std::map<std::string_view, std::vector<std::string_view>> tables;
  /// Instructions whose target is a label, with its line; and calls.
  std::vector<std::pair<size_t, std::pair<std::string_view, uint32_t>>> jumps;
  std::vector<std::pair<std::pair<Function *, size_t>, std::string_view>> calls;
};

} // namespace

Result<std::unique_ptr<Module>> Module::parse(std::string_view text) {
  auto module = std::make_unique<Module>();
  try {
    Parser(text, *module).parse();
  } catch (const Failure &failure) {
    return Status::error("PTX, line " + std::to_string(failure.line) + ": " + failure.what);
  }
  return module;
}

} // namespace recast::ptx
