// Large tensors stay out of protobuf: before parsing, the raw_data of a model is replaced by short tokens that say
// where the bytes are; after serialising, tokens are replaced by bytes. Works on the wire format
// (https://protobuf.dev/programming-guides/encoding) of ModelProto and every message below it.
#pragma once
#include "ir/io/MappedFile.h"
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace recast::io {

/// What a token stands for: bytes elsewhere, given by two numbers whose meaning is the caller's.
struct Token {
  uint64_t first, second;
};
std::string encodeToken(Token token);
std::optional<Token> decodeToken(llvm::StringRef rawData);
/// True for raw data that the exporter must hand over by token: large, or as long as a token.
bool wantsToken(llvm::ArrayRef<char> rawData);

/// raw_data of at most this many bytes stays where it is.
inline constexpr size_t kInlineBytes = 256;

/// The serialised model without its large tensors; tokens hold (offset, length) in `model`. Linear in the number of
/// fields; the tensors' pages are not touched. An error says at which byte the file is damaged.
llvm::Expected<std::string> extractTensors(llvm::ArrayRef<char> model);

/// Writes `skeleton`, a serialised ModelProto whose tokens hold (index into `tensors`, 0), with the tensors in place.
/// Tensors that are views of `source` are copied from file to file.
llvm::Error writeWithTensors(llvm::StringRef skeleton, llvm::ArrayRef<llvm::ArrayRef<char>> tensors, OutputFile &out,
                             const MappedFile *source = nullptr);

} // namespace recast::io
