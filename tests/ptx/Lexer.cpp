#include "tests/ptx/Lexer.h"
#include <algorithm>
#include <cctype>
#include <charconv>

namespace recast::ptx {
namespace {

bool startsWord(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' || c == '.';
}
bool isInWord(char c) { return startsWord(c) || std::isdigit(static_cast<unsigned char>(c)); }

/// Decimal, 0x..., 0f... and 0d..., the last two with the bits of a float in hexadecimal digits.
Token numberAt(std::string_view text, size_t at) {
  int base = 10;
  size_t digits = at;
  if (text[at] == '0' && at + 1 < text.size() &&
      std::string_view("xXfFdD").find(text[at + 1]) != std::string_view::npos)
    base = 16, digits += 2;
  Token token{Token::Number, {}, 0, 0};
  auto [end, error] = std::from_chars(text.data() + digits, text.data() + text.size(), token.number, base);
  if (end < text.data() + text.size() && *end == 'U')
    ++end;
  token.text = text.substr(at, static_cast<size_t>(end - text.data()) - at);
  if (error != std::errc())
    token.kind = Token::Sign;
  return token;
}

} // namespace

std::vector<Token> tokenise(std::string_view text) {
  std::vector<Token> tokens;
  uint32_t line = 1;
  for (size_t i = 0; i < text.size();) {
    char c = text[i];
    if (c == '\n')
      ++line;
    if (std::isspace(static_cast<unsigned char>(c))) {
      ++i;
      continue;
    }
    if (text.substr(i, 2) == "//") {
      i = std::min(text.find('\n', i), text.size());
      continue;
    }
    Token token{Token::Sign, text.substr(i, 1), 0, line};
    if (startsWord(c)) {
      size_t end = i;
      while (end < text.size() && isInWord(text[end]))
        ++end;
      token = {Token::Word, text.substr(i, end - i), 0, line};
    } else if (std::isdigit(static_cast<unsigned char>(c))) {
      token = numberAt(text, i);
      token.line = line;
    } else if (c == '"') {
      size_t end = std::min(text.find('"', i + 1), text.size() - 1);
      token = {Token::Text, text.substr(i, end + 1 - i), 0, line};
    }
    i += std::max<size_t>(token.text.size(), 1);
    tokens.push_back(token);
  }
  tokens.push_back({Token::End, "the end", 0, line});
  return tokens;
}

} // namespace recast::ptx
