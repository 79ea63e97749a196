#include "ir/onnx/Einsum.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

using namespace llvm;
namespace recast::onnx_ir {

std::string parseEinsum(StringRef written, ArrayRef<int64_t> ranks, EinsumEquation &equation) {
  std::string text;
  for (char ch : written)
    if (ch != ' ')
      text += ch;
  auto [left, right] = StringRef(text).split("->");
  bool isExplicit = StringRef(text).contains("->");
  SmallVector<StringRef> terms;
  left.split(terms, ',');
  if (terms.size() != ranks.size())
    return "the equation has " + std::to_string(terms.size()) + " terms for " + std::to_string(ranks.size()) +
           " inputs";

  std::string spare;
  for (char letter : StringRef("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    if (!StringRef(text).contains(letter))
      spare += letter;
  // The dimensions of ellipses are aligned at the right: the last one has the first spare letter.
  size_t longest = 0;
  auto lettersOf = [&](size_t n) {
    std::string letters;
    for (size_t i = n; i-- > 0;)
      letters += spare[i];
    return letters;
  };
  for (auto [i, term] : enumerate(terms)) {
    std::string letters = term.str();
    if (size_t at = letters.find("..."); at != std::string::npos) {
      size_t n = static_cast<size_t>(ranks[i]) - (letters.size() - 3);
      if (n > spare.size())
        return "the equation has no letters left for its ellipsis";
      letters.replace(at, 3, lettersOf(n));
      longest = std::max(longest, n);
    }
    if (static_cast<int64_t>(letters.size()) != ranks[i])
      return "the equation does not fit the rank of input " + std::to_string(i);
    equation.inputs.push_back(letters);
  }
  if (isExplicit) {
    equation.output = right.str();
    if (size_t at = equation.output.find("..."); at != std::string::npos)
      equation.output.replace(at, 3, lettersOf(longest));
    return "";
  }
  std::string once;
  for (char letter : left)
    if (isAlpha(letter) && left.count(letter) == 1)
      once += letter;
  sort(once);
  equation.output = lettersOf(longest) + once;
  return "";
}

} // namespace recast::onnx_ir
