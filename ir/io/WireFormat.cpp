#include "ir/io/WireFormat.h"
#include <cstring>

using namespace llvm;
namespace recast::io {

namespace {

// Messages on the way from ModelProto to TensorProto.raw_data, and the fields that lead on (numbers from onnx.proto).
enum class Message { Model, Graph, Node, Attribute, Tensor, SparseTensor, Function, Training, Other };

Message childOf(Message message, uint32_t field) {
  switch (message) {
  case Message::Model:
    return field == 7    ? Message::Graph
           : field == 20 ? Message::Training
           : field == 25 ? Message::Function
                         : Message::Other;
  case Message::Graph:
    return field == 1    ? Message::Node
           : field == 5  ? Message::Tensor
           : field == 15 ? Message::SparseTensor
                         : Message::Other;
  case Message::Node:
    return field == 5 ? Message::Attribute : Message::Other;
  case Message::Attribute:
    return field == 5 || field == 10    ? Message::Tensor
           : field == 6 || field == 11  ? Message::Graph
           : field == 22 || field == 23 ? Message::SparseTensor
                                        : Message::Other;
  case Message::SparseTensor:
    return field == 1 || field == 2 ? Message::Tensor : Message::Other;
  case Message::Function:
    return field == 7 ? Message::Node : field == 11 ? Message::Attribute : Message::Other;
  case Message::Training:
    return field == 1 || field == 2 ? Message::Graph : Message::Other;
  default:
    return Message::Other;
  }
}
constexpr uint32_t kRawData = 9;

constexpr char kMagic[] = "\0recast:raw\0";
constexpr size_t kTokenBytes = sizeof kMagic - 1 + 2 * sizeof(uint64_t);
constexpr int kMaxDepth = 90; // protobuf itself refuses more than 100 nested messages

void appendVarint(uint64_t value, std::string &out) {
  for (; value >= 0x80; value >>= 7)
    out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

size_t varintBytes(uint64_t value) {
  size_t bytes = 1;
  for (; value >= 0x80; value >>= 7)
    ++bytes;
  return bytes;
}

struct Cursor {
  const char *at, *end;

  bool varint(uint64_t &value) {
    value = 0;
    for (int shift = 0; shift < 64 && at < end; shift += 7) {
      uint8_t byte = static_cast<uint8_t>(*at++);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (!(byte & 0x80))
        return true;
    }
    return false;
  }
  bool skip(uint64_t bytes) {
    if (bytes > static_cast<uint64_t>(end - at))
      return false;
    at += bytes;
    return true;
  }
};

// One field: [start, valueStart) is the tag and, for wire type 2, the length; [valueStart, valueEnd) is the value.
struct Field {
  uint32_t number, wire;
  const char *start, *valueStart, *valueEnd;
};

bool nextField(Cursor &cursor, Field &field) {
  field.start = cursor.at;
  uint64_t tag, length;
  if (!cursor.varint(tag) || tag >> 3 == 0 || tag >> 32)
    return false;
  field.number = static_cast<uint32_t>(tag >> 3);
  field.wire = tag & 7;
  field.valueStart = cursor.at;
  switch (field.wire) {
  case 0:
    if (!cursor.varint(length))
      return false;
    break;
  case 1:
    if (!cursor.skip(8))
      return false;
    break;
  case 5:
    if (!cursor.skip(4))
      return false;
    break;
  case 2:
    if (!cursor.varint(length))
      return false;
    field.valueStart = cursor.at;
    if (!cursor.skip(length))
      return false;
    break;
  default: // groups are not used by ONNX
    return false;
  }
  field.valueEnd = cursor.at;
  return true;
}

struct Extractor {
  const char *base;
  const char *badByte = nullptr;

  bool run(Message message, const char *begin, const char *end, int depth, std::string &out) {
    Cursor cursor{begin, end};
    const char *copied = begin; // what lies before is in `out`
    auto copyUpTo = [&](const char *to) { out.append(copied, to); };
    while (cursor.at < end) {
      Field field;
      if (depth > kMaxDepth || !nextField(cursor, field)) {
        badByte = cursor.at;
        return false;
      }
      if (field.wire != 2)
        continue;
      size_t length = static_cast<size_t>(field.valueEnd - field.valueStart);
      Message child = childOf(message, field.number);
      if (message == Message::Tensor && field.number == kRawData && wantsToken(ArrayRef(field.valueStart, length))) {
        copyUpTo(field.start);
        appendVarint((kRawData << 3) | 2, out);
        appendVarint(kTokenBytes, out);
        out += encodeToken({static_cast<uint64_t>(field.valueStart - base), length});
        copied = field.valueEnd;
      } else if (child != Message::Other && length > kTokenBytes) {
        std::string inner;
        if (!run(child, field.valueStart, field.valueEnd, depth + 1, inner))
          return false;
        if (inner.size() == length && std::memcmp(inner.data(), field.valueStart, length) == 0)
          continue;
        copyUpTo(field.start);
        appendVarint((field.number << 3) | 2, out);
        appendVarint(inner.size(), out);
        out += inner;
        copied = field.valueEnd;
      }
    }
    copyUpTo(end);
    return true;
  }
};

// Puts tensors where their tokens are. Messages without a token are copied as they are.
struct Splicer {
  Splicer(StringRef skeleton, ArrayRef<ArrayRef<char>> tensors, const MappedFile *source)
      : tensors(tensors), source(source) {
    StringRef magic(kMagic, sizeof kMagic - 1);
    for (size_t at = skeleton.find(magic); at != StringRef::npos; at = skeleton.find(magic, at + magic.size()))
      tokens.push_back(skeleton.data() + at);
  }

  ArrayRef<ArrayRef<char>> tensors;
  const MappedFile *source;
  std::vector<const char *> tokens; ///< Where they may be: each starts like one.
  std::vector<uint64_t> sizes;      ///< Of messages that hold tokens, in the order in which `write` meets them.
  size_t nextSize = 0;

  bool holdsToken(const Field &field) const {
    auto at = llvm::lower_bound(tokens, field.valueStart);
    return at != tokens.end() && *at < field.valueEnd;
  }

  uint64_t measure(Message message, const char *begin, const char *end) {
    Cursor cursor{begin, end};
    uint64_t total = static_cast<uint64_t>(end - begin);
    Field field;
    while (cursor.at < end && nextField(cursor, field)) {
      Message child = childOf(message, field.number);
      if (field.wire != 2)
        continue;
      uint64_t length = static_cast<uint64_t>(field.valueEnd - field.valueStart), actual = length;
      if (message == Message::Tensor && field.number == kRawData) {
        if (auto token = decodeToken(StringRef(field.valueStart, length)))
          actual = tensors[token->first].size();
      } else if (child != Message::Other && holdsToken(field)) {
        size_t slot = sizes.size();
        sizes.push_back(0);
        actual = sizes[slot] = measure(child, field.valueStart, field.valueEnd);
      }
      total += actual - length + varintBytes(actual) - varintBytes(length);
    }
    return total;
  }

  Error write(Message message, const char *begin, const char *end, OutputFile &out) {
    Cursor cursor{begin, end};
    const char *copied = begin;
    Field field;
    auto startValue = [&](uint64_t size) -> Error {
      std::string head(copied, field.start);
      appendVarint((static_cast<uint64_t>(field.number) << 3) | 2, head);
      appendVarint(size, head);
      copied = field.valueEnd;
      return out.write(head);
    };
    while (cursor.at < end && nextField(cursor, field)) {
      if (field.wire != 2)
        continue;
      size_t length = static_cast<size_t>(field.valueEnd - field.valueStart);
      Message child = childOf(message, field.number);
      if (message == Message::Tensor && field.number == kRawData) {
        auto token = decodeToken(StringRef(field.valueStart, length));
        if (!token)
          continue;
        ArrayRef<char> bytes = tensors[token->first];
        if (Error error = startValue(bytes.size()))
          return error;
        if (Error error = out.write(bytes, source))
          return error;
      } else if (child != Message::Other && holdsToken(field)) {
        Field current = field;
        if (Error error = startValue(sizes[nextSize++]))
          return error;
        if (Error error = write(child, current.valueStart, current.valueEnd, out))
          return error;
      }
    }
    return out.write(ArrayRef(copied, end));
  }
};

} // namespace

std::string encodeToken(Token token) {
  std::string bytes(kMagic, sizeof kMagic - 1);
  bytes.append(reinterpret_cast<const char *>(&token), sizeof token);
  return bytes;
}

std::optional<Token> decodeToken(StringRef rawData) {
  if (rawData.size() != kTokenBytes || !rawData.starts_with(StringRef(kMagic, sizeof kMagic - 1)))
    return std::nullopt;
  Token token;
  std::memcpy(&token, rawData.data() + sizeof kMagic - 1, sizeof token);
  return token;
}

bool wantsToken(ArrayRef<char> rawData) { return rawData.size() > kInlineBytes || rawData.size() == kTokenBytes; }

Expected<std::string> extractTensors(ArrayRef<char> model) {
  Extractor extractor{model.data()};
  std::string skeleton;
  if (!extractor.run(Message::Model, model.begin(), model.end(), 0, skeleton))
    return createStringError("is cut short or no ONNX model: the protobuf encoding breaks at byte " +
                             std::to_string(extractor.badByte - model.data()) + " of " + std::to_string(model.size()));
  return skeleton;
}

Error writeWithTensors(StringRef skeleton, ArrayRef<ArrayRef<char>> tensors, OutputFile &out,
                       const MappedFile *source) {
  Splicer splicer(skeleton, tensors, source);
  splicer.measure(Message::Model, skeleton.begin(), skeleton.end());
  return splicer.write(Message::Model, skeleton.begin(), skeleton.end(), out);
}

} // namespace recast::io
