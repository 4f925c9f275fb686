// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/arena.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/fork.h"
#include "base/memory_limit.h"
#include "transport/shm/handover.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace dt::shm {
namespace {

constexpr int32_t kViewsMax = 1024;            // cached mappings of peers' memory
constexpr int64_t kLimitCheckBytes = 1 << 20;  // below, reading the limits costs more than it saves

int64_t round_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

Result<int> create_memory(const HostArena::Options& options) {
  const int64_t bytes = options.local_size * kSectionBytes;
  const auto failure = [&](const char* call, int error) {
    return Status(Code::kSystem, format("creating the memory of this host: %s: %s", call,
                                        errno_text(error).c_str()));
  };
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      limit.rlim_cur < static_cast<rlim_t>(bytes)) {
    // Growing the file would raise SIGXFSZ, which kills the program.
    return Status(Code::kSystem,
                  format("creating the memory of this host: the limit of file sizes is %llu bytes; "
                         "lift it (ulimit -f unlimited)",
                         static_cast<unsigned long long>(limit.rlim_cur)));
  }
  const int fd = memfd_create("dt-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return failure("memfd_create", errno);
  if (ftruncate(fd, bytes) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const int error = errno;
    close(fd);
    return failure("sizing and sealing it", error);
  }
  return fd;
}

}  // namespace

Result<ArenaListener> ArenaListener::create() {
  DT_TRY_VALUE(NamedListener listener, open_named_listener());
  guard_fd_from_fork(listener.fd);
  return ArenaListener(listener.fd, std::move(listener.name));
}

ArenaListener::ArenaListener(ArenaListener&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), name_(std::move(other.name_)) {}

ArenaListener& ArenaListener::operator=(ArenaListener&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(name_, other.name_);
  return *this;
}

ArenaListener::~ArenaListener() {
  release_fd_from_fork_guard(fd_);
  if (fd_ >= 0) close(fd_);
}

View::~View() { munmap(data_, static_cast<size_t>(bytes_)); }

Result<std::shared_ptr<HostArena>> HostArena::create(ArenaListener listener,
                                                     const std::string& leader_name,
                                                     const Options& options, const Wait& wait) {
  if (options.local_size < 1 || options.local_size > kMaxLocalRanks || options.local_rank < 0 ||
      options.local_rank >= options.local_size) {
    return Status(Code::kInvalidArgument,
                  format("local rank %d of %d: a host has 1 to %d ranks", options.local_rank,
                         options.local_size, kMaxLocalRanks));
  }
  std::shared_ptr<HostArena> arena;
  const PrepareSection prepare = [&](int fd) {
    arena.reset(new HostArena(fd, options));
    return arena->map_headers();
  };
  const HandoverTerms terms{options.session, options.local_rank, options.local_size,
                            options.logger};
  if (options.local_rank == 0) {
    DT_TRY_VALUE(const int fd, create_memory(options));
    DT_TRY(lead_handover(listener.fd(), fd, terms, wait, prepare));
  } else {
    DT_TRY(follow_handover(leader_name, terms, wait, prepare));
  }
  DT_TRY(arena->check_headers());
  return arena;
}

HostArena::HostArena(int fd, const Options& options)
    : fd_(fd), options_(options), told_left_(static_cast<size_t>(options.local_size)) {
  blocks_.with([](Blocks& blocks) { blocks.space = Space(kPageBytes, kSectionBytes); });
  views_.with([&](Views& views) { views.by_rank.resize(options_.local_size); });
}

/// Order: the mark, the count, the doorbells. A rank that finds the count or is woken finds the
/// mark.
void HostArena::leave() {
  const bool in_peace = !quarantined_.load(std::memory_order_relaxed);
  uint32_t here = 0;
  const uint32_t left = in_peace ? SectionHeader::kLeftInPeace : SectionHeader::kLeft;
  if (!own_header().left.compare_exchange_strong(here, left, std::memory_order_seq_cst)) return;
  if (!in_peace) return;
  headers_[0]->leavers.fetch_add(1, std::memory_order_seq_cst);
  for (SectionHeader* const header : headers_) header->doorbell.ring();
}

void HostArena::peer_left(int32_t local_rank) {
  told_left_[local_rank].store(true, std::memory_order_release);
  told_of_leavers_.store(true, std::memory_order_seq_cst);
  doorbell().ring();
}

Status HostArena::map_headers() {
  const int64_t own = options_.local_rank * kSectionBytes;
  DT_TRY(reserve_pages(own, kPageBytes));
  for (int32_t rank = 0; rank < options_.local_size; ++rank) {
    DT_TRY_VALUE(char* page, map(rank, 0, kPageBytes));
    headers_.push_back(reinterpret_cast<SectionHeader*>(page));
  }
  // The file is zeroed and nobody else looks before every rank is ready.
  SectionHeader& header = *new (headers_[options_.local_rank]) SectionHeader();
  header.magic = SectionHeader::kMagic;
  header.header_bytes = sizeof(SectionHeader);
  header.world_rank = options_.world_rank;
  header.pid = getpid();
  struct stat names = {};
  header.pid_namespace = stat("/proc/self/ns/pid", &names) == 0 ? names.st_ino : 0;
  cpu_set_t usable;
  static_assert(sizeof usable == sizeof header.affinity);
  CPU_ZERO(&usable);
  sched_getaffinity(0, sizeof usable, &usable);
  memcpy(header.affinity, &usable, sizeof usable);
  header.node = options_.home.node;
  return {};
}

Status HostArena::check_headers() {
  uint64_t usable[SectionHeader::kAffinityWords] = {};
  for (int32_t rank = 0; rank < options_.local_size; ++rank) {
    const SectionHeader& peer = header(rank);
    if (peer.magic != SectionHeader::kMagic || peer.header_bytes != sizeof(SectionHeader)) {
      return Status(
          Code::kVersion,
          format("local rank %d (pid %lld) runs another version of dt than local rank %d; "
                 "install the same one everywhere",
                 rank, static_cast<long long>(peer.pid), options_.local_rank));
    }
    for (int i = 0; i < SectionHeader::kAffinityWords; ++i) usable[i] |= peer.affinity[i];
  }
  int32_t processors = 0;
  for (const uint64_t word : usable) processors += std::popcount(word);
  oversubscribed_ = options_.local_size > std::max(processors, 1);
  return {};
}

HostArena::~HostArena() {
  reap();
  // A peer may still write into our blocks after a failure, and may still read a communicator's
  // block that it has not left: those stay until the last rank closes the file.
  std::vector<Retired> pending =
      retired_.with([](std::vector<Retired>& retired) { return std::exchange(retired, {}); });
  blocks_.with([&](Blocks& blocks) {
    for (const auto& [address, block] : blocks.live) {
      void* pointer = reinterpret_cast<void*>(address);
      munmap(pointer, static_cast<size_t>(block.bytes));
      const bool in_use = std::any_of(pending.begin(), pending.end(), [&](const Retired& retired) {
        return std::find(retired.pointers.begin(), retired.pointers.end(), pointer) !=
               retired.pointers.end();
      });
      if (in_use || quarantined_.load(std::memory_order_relaxed)) continue;
      fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                options_.local_rank * kSectionBytes + block.offset, block.bytes);
    }
  });
  for (SectionHeader* page : headers_) munmap(page, kPageBytes);
  close(fd_);
}

Result<char*> HostArena::map(int32_t local_rank, int64_t offset, int64_t bytes) const {
  const auto length = static_cast<size_t>(bytes);
  const off_t position = local_rank * kSectionBytes + offset;
  const auto failure = [&]() {
    return Status(Code::kOutOfMemory,
                  format("mapping %lld bytes of local rank %d's memory: %s; look at the limit of "
                         "address space (ulimit -v) and at vm.max_map_count",
                         static_cast<long long>(bytes), local_rank, errno_text(errno).c_str()));
  };
  if (bytes < kHugePageBytes) {
    void* address = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, position);
    if (address == MAP_FAILED) return failure();
    return static_cast<char*>(address);
  }
  // Huge pages need an address that is aligned as the offset is: reserve more, keep the middle.
  const size_t reserved = length + kHugePageBytes;
  void* room =
      mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return failure();
  const auto begin = reinterpret_cast<uintptr_t>(room);
  const uintptr_t aligned = round_up(static_cast<int64_t>(begin), kHugePageBytes);
  void* address = mmap(reinterpret_cast<void*>(aligned), length, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_FIXED, fd_, position);
  if (address == MAP_FAILED) {
    const Status status = failure();
    munmap(room, reserved);
    return status;
  }
  if (aligned > begin) munmap(room, aligned - begin);
  const uintptr_t end = aligned + length;
  if (begin + reserved > end) munmap(reinterpret_cast<void*>(end), begin + reserved - end);
  madvise(address, length, MADV_HUGEPAGE);  // a wish; refused where huge pages are off
  return static_cast<char*>(address);
}

Status HostArena::shortage(int64_t bytes, const std::string& why) const {
  return Status(
      Code::kOutOfMemory,
      format("rank %d cannot reserve %lld bytes of memory shared on this host: %s; ask for "
             "less, free memory, or raise the memory limit of the container or cgroup",
             options_.world_rank, static_cast<long long>(bytes), why.c_str()));
}

/// First touch would do the same for a rank that is bound, but not in whichever thread of the
/// program allocates, nor for pages that come back from swap under another rank.
void HostArena::settle(char* address, const Block& block) {
  if (!options_.home.binds || unsettled_.load(std::memory_order_relaxed)) return;
  const int error = prefer_node(address, block.bytes, options_.home.node);
  if (error == 0 || unsettled_.exchange(true) || options_.logger == nullptr) return;
  options_.logger->log(LogLevel::kDebug,
                       "rank %d: its memory cannot be asked for on NUMA node %d (mbind: %s), so it "
                       "lies where it is first written",
                       options_.world_rank, options_.home.node, errno_text(error).c_str());
}

Status HostArena::reserve(char* address, const Block& block) const {
  const auto length = static_cast<size_t>(block.bytes);
  // Touching through a mapping that asked for huge pages gets them, fallocate alone does not. It
  // fails where touching would raise SIGBUS; older kernels do not know it.
  if (block.bytes >= kHugePageBytes && madvise(address, length, MADV_POPULATE_WRITE) != 0 &&
      errno != EINVAL) {
    return shortage(block.bytes, errno_text(errno));
  }
  return reserve_pages(options_.local_rank * kSectionBytes + block.offset, block.bytes);
}

Status HostArena::reserve_pages(int64_t offset, int64_t bytes) const {
  int result;
  do {
    result = fallocate(fd_, 0, offset, bytes);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? Status() : shortage(bytes, errno_text(errno));
}

Result<void*> HostArena::allocate(int64_t bytes, Use use) {
  reap();
  if (bytes <= 0) {
    return Status(Code::kInvalidArgument, format("cannot allocate %lld bytes: must be positive",
                                                 static_cast<long long>(bytes)));
  }
  if (bytes > kSectionBytes - kPageBytes) {
    return shortage(bytes, format("a rank has %lld bytes of address space for it",
                                  static_cast<long long>(kSectionBytes - kPageBytes)));
  }
  if (bytes >= kLimitCheckBytes) {
    // The kernel would hand out pages until its OOM killer strikes, so look first.
    const MemoryLimit limit = memory_limit();
    if (bytes > limit.available_bytes) {
      return shortage(bytes,
                      format("only %lld bytes are left (%s)",
                             static_cast<long long>(limit.available_bytes), limit.source.c_str()));
    }
  }
  Block block;
  block.bytes = round_up(bytes, kPageBytes);
  block.is_data = use == Use::kData;
  const int64_t alignment = block.bytes >= kHugePageBytes ? kHugePageBytes : kPageBytes;
  block.offset =
      blocks_.with([&](Blocks& blocks) { return blocks.space.take(block.bytes, alignment); });
  if (block.offset < 0) return shortage(bytes, "the rank's address space for it is full");
  const auto give_back = [&]() {
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              options_.local_rank * kSectionBytes + block.offset, block.bytes);
    blocks_.with([&](Blocks& blocks) { blocks.space.give(block.offset, block.bytes); });
  };
  Result<char*> mapped = map(options_.local_rank, block.offset, block.bytes);
  if (!mapped.ok()) {
    give_back();
    return mapped.status();
  }
  char* address = mapped.value();
  settle(address, block);
  Status reserved = reserve(address, block);
  if (!reserved.ok()) {
    munmap(address, static_cast<size_t>(block.bytes));
    give_back();
    return reserved;
  }
  blocks_.with([&](Blocks& blocks) { blocks.live[reinterpret_cast<uintptr_t>(address)] = block; });
  return static_cast<void*>(address);
}

Status HostArena::release(void* pointer) {
  if (pointer == nullptr) return {};
  Block block;
  const bool known = blocks_.with([&](Blocks& blocks) {
    auto found = blocks.live.find(reinterpret_cast<uintptr_t>(pointer));
    if (found == blocks.live.end()) return false;
    block = found->second;
    blocks.live.erase(found);
    return true;
  });
  if (!known) {
    return Status(Code::kInvalidArgument,
                  format("%p was not allocated here, or was released before", pointer));
  }
  munmap(pointer, static_cast<size_t>(block.bytes));
  if (quarantined_.load(std::memory_order_relaxed)) return {};
  fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
            options_.local_rank * kSectionBytes + block.offset, block.bytes);
  blocks_.with([&](Blocks& blocks) { blocks.space.give(block.offset, block.bytes); });
  return {};
}

void HostArena::map_pages(char* begin, int64_t bytes) {
  const auto first = reinterpret_cast<uintptr_t>(begin) / kPageBytes * kPageBytes;
  const auto end = reinterpret_cast<uintptr_t>(begin) + static_cast<uintptr_t>(bytes);
  // Where the kernel does not know it, the pages take their faults.
  (void)madvise(reinterpret_cast<void*>(first), end - first, MADV_POPULATE_WRITE);
}

Status HostArena::withdraw() {
  quarantine();
  return blocks_.with([&](Blocks& blocks) -> Status {
    for (auto& [address, block] : blocks.live) {
      if (!block.is_data || block.withdrawn) continue;
      const auto length = static_cast<size_t>(block.bytes);
      const MemoryLimit limit = memory_limit();
      if (block.bytes > limit.available_bytes) {
        return shortage(block.bytes, format("only %lld bytes are left (%s)",
                                            static_cast<long long>(limit.available_bytes),
                                            limit.source.c_str()));
      }
      void* copy =
          mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (copy == MAP_FAILED) return shortage(block.bytes, errno_text(errno));
      void* const place = reinterpret_cast<void*>(address);
      memcpy(copy, place, length);
      if (mremap(copy, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, place) == MAP_FAILED) {
        const int error = errno;
        munmap(copy, length);
        return shortage(block.bytes, errno_text(error));
      }
      block.withdrawn = true;
    }
    return {};
  });
}

void HostArena::retire(std::vector<void*> pointers, const std::atomic<uint32_t>* detached,
                       uint32_t target) {
  retired_.with([&](std::vector<Retired>& retired) {
    retired.push_back({std::move(pointers), detached, target});
  });
  reap();
}

void HostArena::reap() {
  std::vector<void*> free;
  retired_.with([&](std::vector<Retired>& retired) {
    std::erase_if(retired, [&](const Retired& entry) {
      if (entry.detached->load(std::memory_order_acquire) < entry.target) return false;
      free.insert(free.end(), entry.pointers.begin(), entry.pointers.end());
      return true;
    });
  });
  for (void* pointer : free) (void)release(pointer);
}

bool HostArena::locate(const void* pointer, int64_t bytes, Location* out) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return blocks_.with([&](const Blocks& blocks) {
    auto after = blocks.live.upper_bound(address);
    if (after == blocks.live.begin()) return false;
    const auto& [begin, block] = *--after;
    const auto within = static_cast<int64_t>(address - begin);
    if (block.withdrawn || within > block.bytes || bytes > block.bytes - within) return false;
    out->offset = block.offset + within;
    out->allocation_offset = block.offset;
    out->allocation_bytes = block.bytes;
    return true;
  });
}

void HostArena::drop_oldest(Views& views) {
  std::map<int64_t, Cached>* owner = nullptr;
  std::map<int64_t, Cached>::iterator oldest;
  for (auto& cached : views.by_rank) {
    for (auto entry = cached.begin(); entry != cached.end(); ++entry) {
      if (owner != nullptr && entry->second.used >= oldest->second.used) continue;
      owner = &cached;
      oldest = entry;
    }
  }
  if (owner == nullptr) return;
  owner->erase(oldest);
  --views.total;
}

Result<std::shared_ptr<const View>> HostArena::view(int32_t local_rank, int64_t offset,
                                                    int64_t bytes) {
  if (local_rank < 0 || local_rank >= options_.local_size || offset < 0 || bytes <= 0 ||
      offset % kPageBytes != 0 || bytes % kPageBytes != 0 || bytes > kSectionBytes - offset) {
    return Status(Code::kInternal, format("no view of %lld bytes at %lld of local rank %d",
                                          static_cast<long long>(bytes),
                                          static_cast<long long>(offset), local_rank));
  }
  return views_.with([&](Views& views) -> Result<std::shared_ptr<const View>> {
    auto& cached = views.by_rank[local_rank];
    auto entry = cached.upper_bound(offset);
    if (entry != cached.begin()) --entry;
    // Whatever overlaps shows a block that its owner has released since.
    while (entry != cached.end() && entry->first < offset + bytes) {
      Cached& old = entry->second;
      if (entry->first == offset && old.view->bytes() == bytes) {
        old.used = ++views.tick;
        return old.view;
      }
      if (entry->first + old.view->bytes() <= offset) {
        ++entry;
        continue;
      }
      entry = cached.erase(entry);
      --views.total;
    }
    if (views.total >= kViewsMax) drop_oldest(views);
    DT_TRY_VALUE(char* data, map(local_rank, offset, bytes));
    // Filling the page tables now spares a fault per page in the first operation.
    if (bytes >= kHugePageBytes) madvise(data, static_cast<size_t>(bytes), MADV_POPULATE_WRITE);
    auto view = std::make_shared<const View>(data, offset, bytes);
    cached[offset] = Cached{view, ++views.tick};
    ++views.total;
    return view;
  });
}

}  // namespace dt::shm
