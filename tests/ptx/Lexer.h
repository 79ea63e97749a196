// Words of PTX text.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace recast::ptx {

struct Token {
  enum Kind : uint8_t {
    Word,   ///< A name, an opcode with its modifiers, a directive.
    Number, ///< An integer, or 0f.../0d... with the bits of a float.
    Text,   ///< In quotes.
    Sign,   ///< One character.
    End,
  } kind = End;
  std::string_view text;
  uint64_t number = 0;
  uint32_t line = 0;
};

/// The last is an End. What is no token is a Sign, which no statement takes.
std::vector<Token> tokenise(std::string_view text);

} // namespace recast::ptx
