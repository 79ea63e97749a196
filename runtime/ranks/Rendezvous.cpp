#include "runtime/ranks/Rendezvous.h"
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdexcept>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

// A request is a letter, S (set) or G (get), and a key; S has a value too, which G gets as the answer. Keys and values
// are a length of 32 bits and as many bytes; all machines have the same byte order.
namespace recast {

namespace {

constexpr uint32_t kLargest = 1 << 20; ///< Bytes of a key or a value: anything longer comes from somebody else.

bool sendAll(int socket, const void *data, size_t bytes) {
  const char *at = static_cast<const char *>(data);
  while (bytes) {
    ssize_t sent = ::send(socket, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR)
      continue;
    if (sent <= 0)
      return false;
    at += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

bool receiveAll(int socket, void *data, size_t bytes) {
  char *at = static_cast<char *>(data);
  while (bytes) {
    ssize_t got = ::recv(socket, at, bytes, 0);
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

template <typename Bytes> bool sendBytes(int socket, const Bytes &bytes) {
  auto length = static_cast<uint32_t>(bytes.size());
  return sendAll(socket, &length, sizeof(length)) && sendAll(socket, bytes.data(), bytes.size());
}

template <typename Bytes> bool receiveBytes(int socket, Bytes &bytes) {
  uint32_t length = 0;
  if (!receiveAll(socket, &length, sizeof(length)) || length > kLargest)
    return false;
  bytes.resize(length);
  return receiveAll(socket, bytes.data(), length);
}

struct Addresses {
  addrinfo *first = nullptr;
  ~Addresses() {
    if (first)
      freeaddrinfo(first);
  }
};

void resolve(Addresses &addresses, const char *name, const std::string &port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  if (int code = getaddrinfo(name, port.c_str(), &hints, &addresses.first))
    throw std::runtime_error("'" + std::string(name ? name : "") + "' port " + port + ": " + gai_strerror(code));
}

} // namespace

struct RendezvousServer::Impl {
  int listener = -1, wake[2] = {-1, -1};
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::vector<char>> table;
  bool stops = false;
  std::vector<std::pair<std::thread, int>> clients; ///< With their sockets.
  std::thread thread;

  void accept() {
    for (;;) {
      pollfd ready[2] = {{listener, POLLIN, 0}, {wake[0], POLLIN, 0}};
      if (poll(ready, 2, -1) < 0 && errno != EINTR)
        return;
      if (ready[1].revents)
        return;
      if (!(ready[0].revents & POLLIN))
        continue;
      if (int socket = ::accept(listener, nullptr, nullptr); socket >= 0)
        clients.emplace_back(std::thread([this, socket] { serve(socket); }), socket);
    }
  }

  void serve(int socket) {
    char request;
    std::string key;
    std::vector<char> value;
    while (receiveAll(socket, &request, 1) && receiveBytes(socket, key)) {
      if (request == 'S') {
        if (!receiveBytes(socket, value))
          return;
        std::lock_guard lock(mutex);
        table[key] = value;
        changed.notify_all();
      } else if (request == 'G') {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stops || table.contains(key); });
        if (stops)
          return;
        value = table[key];
        lock.unlock();
        if (!sendBytes(socket, value))
          return;
      } else {
        return;
      }
    }
  }
};

RendezvousServer::RendezvousServer(const std::string &port) : impl(std::make_unique<Impl>()) {
  Addresses addresses;
  resolve(addresses, nullptr, port, AI_PASSIVE);
  std::string reason = "no address";
  for (addrinfo *a = addresses.first; a && impl->listener < 0; a = a->ai_next) {
    int socket = ::socket(a->ai_family, a->ai_socktype, a->ai_protocol), on = 1;
    if (socket < 0)
      continue;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(socket, a->ai_addr, a->ai_addrlen) == 0 && listen(socket, SOMAXCONN) == 0) {
      impl->listener = socket;
    } else {
      reason = std::strerror(errno);
      close(socket);
    }
  }
  if (impl->listener < 0 || pipe(impl->wake) != 0)
    throw std::runtime_error("cannot listen on port " + port + ": " + reason);
  impl->thread = std::thread([this] { impl->accept(); });
}

RendezvousServer::~RendezvousServer() {
  if (!impl->thread.joinable())
    return;
  {
    std::lock_guard lock(impl->mutex);
    impl->stops = true;
    impl->changed.notify_all();
  }
  close(impl->wake[1]);
  impl->thread.join();
  for (auto &[thread, socket] : impl->clients) {
    shutdown(socket, SHUT_RDWR);
    thread.join();
    close(socket);
  }
  close(impl->wake[0]);
  close(impl->listener);
}

RendezvousClient::RendezvousClient(const std::string &address, const std::string &port, std::chrono::seconds timeout) {
  auto end = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    std::string reason;
    Addresses addresses;
    resolve(addresses, address.c_str(), port, 0);
    for (addrinfo *a = addresses.first; a; a = a->ai_next) {
      socket = ::socket(a->ai_family, a->ai_socktype, a->ai_protocol);
      if (socket >= 0 && connect(socket, a->ai_addr, a->ai_addrlen) == 0)
        return;
      reason = std::strerror(errno);
      if (socket >= 0)
        close(socket);
      socket = -1;
    }
    if (std::chrono::steady_clock::now() > end)
      throw std::runtime_error("cannot reach rank 0 at '" + address + "' port " + port + ": " + reason);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

RendezvousClient::~RendezvousClient() { close(socket); }

std::string RendezvousClient::ownAddress() const {
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  char text[NI_MAXHOST];
  if (getsockname(socket, reinterpret_cast<sockaddr *>(&own), &length) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr *>(&own), length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0)
    throw std::runtime_error("the address of this machine is not known");
  return text;
}

void RendezvousClient::set(const std::string &key, const std::vector<char> &data) {
  if (!sendAll(socket, "S", 1) || !sendBytes(socket, key) || !sendBytes(socket, data))
    throw std::runtime_error("rank 0 is gone");
}

std::vector<char> RendezvousClient::get(const std::string &key) {
  std::vector<char> value;
  if (!sendAll(socket, "G", 1) || !sendBytes(socket, key) || !receiveBytes(socket, value))
    throw std::runtime_error("rank 0 is gone");
  return value;
}

void RendezvousClient::wait(const std::vector<std::string> &keys) {
  for (const std::string &key : keys)
    get(key);
}

} // namespace recast
