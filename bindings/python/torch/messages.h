// SPDX-License-Identifier: Apache-2.0
#pragma once
/**
 * @file
 * Messages between two ranks of a job: with tags, and from any source.
 */
#include <atomic>
#include <cstring>
#include <list>
#include <unordered_map>

#include "work.h"

namespace dt::torch {

/**
 * Stands before each message, on the pair's own lane of dt, and carries a small message itself: its
 * size is what a mailbox of dt takes without a ring.
 */
struct Header {
  static constexpr int64_t kInlineBytes = 64;

  uint64_t group = 0;  ///< its number, plus whose tags (GroupMessages::Kind)
  int64_t tag = 0;
  int64_t bytes = 0;  ///< of the message, which follows if it is larger than kInlineBytes
  int64_t count = 0;  ///< of its elements
  int32_t dtype = DT_U8;
  int32_t is_farewell = 0;  ///< no message, but the last header from this peer
  char data[kInlineBytes] = {};
};
static_assert(sizeof(Header) == 104);

struct Arrived;

/** A receive. The fields below `what` belong to Messages until it is done. */
struct Receive {
  uint64_t group = 0;
  int64_t tag = 0;
  std::vector<int> sources;  ///< ranks of the job that may send it
  char* memory = nullptr;
  int64_t bytes = 0;
  std::chrono::steady_clock::time_point end;
  std::string what;  ///< for errors

  int source = -1;  ///< the rank of the job that sent it
  bool done = false;
  std::exception_ptr error;
};

/** A message that no receive wanted when its header came. */
struct Arrived {
  int source = -1;
  Header header;
  std::vector<char> bytes;
  bool whole = false;                  ///< its bytes are here
  std::shared_ptr<Receive> wanted_by;  ///< the receive that it will fill then
};

class Message;

/**
 * The messages of a process, in all groups of one job.
 *
 * dt matches the n-th send of a pair with the n-th receive. So every message is preceded by a
 * header of fixed size, and the receiver decides by it where the message goes: into the memory of
 * the first receive that wants it, or into memory of its own (Arrived) until one does.
 *
 * A rank listens to a peer, that is, has a receive for one header under way, while some receive
 * that is not satisfied names this peer. No wait of one pair or direction holds up another one,
 * because dt has a lane for each. A program that ends when every send waits for its receive also
 * ends here: a send to a rank is held up only while no receive of that rank names the sender, since
 * messages with other tags are taken meanwhile. Whoever waits for a message takes in all that has
 * come; while nobody waits, a thread of this class does. Nothing waits without a limit: a message
 * has one, what dt moves to a receive has another, and leave() has its own. A send that is not
 * taken in time fails alone, and dt keeps it: it may still arrive.
 *
 * A receive from any source listens to all its peers, and when one has sent, goes on listening to
 * the others: what they send is kept for later receives. As dt cannot take a receive back, ranks
 * that leave the job tell each other, in leave(), and those that are listened to say farewell.
 */
class Messages : public std::enable_shared_from_this<Messages> {
 public:
  /** How soon a waiter sees what another thread has posted. */
  static constexpr int64_t kLookMs = 5;

  /** @param comm of all ranks of the job, for messages alone. */
  Messages(dt_comm* comm, int rank, int size);

  /** Header and message. dt has no limit for them: one that passes would break the communicator. */
  void send(Message& message, const Header& header, const void* memory, int peer);
  void post(const std::shared_ptr<Receive>& receive);
  /** Takes in what has come. @return whether `receive`, if not NULL, is done. */
  bool advance(const Receive* receive);
  /** Until anything has moved, for a short time at most. `others`: not done. */
  void wait(std::vector<dt_work*> others, int64_t timeout_ms);
  /** Keeps a work until it is done. */
  void keep(c10::intrusive_ptr<Message> message);
  /** It is done. */
  void forget(const Message* message);
  /** Why no message can move any more; "": they can. */
  std::string failure();
  /** Completes the future of a work when it is done. */
  void watch(c10::intrusive_ptr<Message> message);
  /** Before the job ends, on all ranks: nothing of this class is under way afterwards. Receives
   * that still wait fail. Throws nothing, also where the communicator is broken. @param why what
   * ranks read that call something else. */
  void leave(dt_comm* world, int64_t timeout_ms, const std::string& why);
  /** Receives that wait fail, and later ones are refused. Where dt still moves a message, as after
   * a shrink, this object stays until the process ends. */
  void close();

 private:
  struct Peer {
    std::unique_ptr<Header> header = std::make_unique<Header>();  ///< where the next one goes
    dt_work* work = nullptr;  ///< of the receive; NULL: not listening
    bool parting = false;     ///< it will say farewell
    bool parted = false;      ///< it has
  };
  /** A message larger than its header, on its way in: for one of the two. */
  struct Incoming {
    std::shared_ptr<Receive> receive;
    std::shared_ptr<Arrived> arrived;
    dt_work* work = nullptr;
  };

  // With mutex_ held.
  bool take_in();  ///< whether anything moved
  void take(int peer);
  void listen(int peer);
  bool wanted(int peer) const;
  void receive_rest(const Header& header, int peer, char* memory, Incoming incoming);
  void end(const Incoming& incoming, const std::exception_ptr& error);
  void fail(const std::exception_ptr& error);
  void end_waiting();                   ///< the process group is being destroyed
  void start(const std::string& what);  ///< the thread, which `what` needs

  bool complete(const c10::intrusive_ptr<Message>& message);
  void say_farewell(dt_comm* world, int64_t timeout_ms, const std::string& why);
  void sweep();
  void serve();
  std::vector<char> open_pairs();

  dt_comm* const comm_;
  const int rank_;
  const Header farewell_ = {.is_farewell = 1};
  const std::shared_ptr<Completions> completions_ = std::make_shared<Completions>();
  std::mutex sending_;  ///< a header and its message stand one behind the other
  std::mutex mutex_;    ///< of all below
  std::condition_variable changed_;
  std::vector<Peer> peers_;
  std::vector<int> listening_;
  std::list<std::shared_ptr<Receive>> waiting_;  ///< in the order of the calls
  std::list<std::shared_ptr<Arrived>> arrived_;  ///< in the order of their headers
  std::vector<Incoming> incoming_;
  std::unordered_map<const Message*, c10::intrusive_ptr<Message>> kept_;
  size_t sweep_at_ = 16;
  std::list<c10::intrusive_ptr<Message>> watched_;
  std::exception_ptr error_;
  std::atomic<int> waiters_ = 0;  ///< threads in wait()
  bool running_ = false;          ///< serve()
  bool asleep_ = false;           ///< it waits for changed_
  bool closed_ = false;
  std::shared_ptr<Messages> stays_;  ///< this, for ever: dt still writes to its memory
};

/** The work of a send or a receive. */
class Message final : public Work {
 public:
  Message(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
          Tensors tensors, std::shared_ptr<Messages> messages)
      : Work(rank, type, title, inputs, std::move(tensors), nullptr, nullptr),
        messages_(std::move(messages)) {}

  /** @param what it is, for errors. */
  void send(const Header& header, const void* memory, int peer,
            std::chrono::steady_clock::time_point end, std::string what);
  /** @param ranks of the job, by rank of the group; shared by all messages of the group. */
  void receive(std::shared_ptr<Receive> receive, std::shared_ptr<const std::vector<int>> ranks);

  bool poll(int64_t timeout_ms, std::exception_ptr& error) override;
  int sourceRank() const override;
  /** The destination of an unfinished send; -1: there is none. */
  int receiver() const;

 private:
  bool sent(std::vector<dt_work*>& left, std::exception_ptr& error) const;
  bool in_use() const override;
  void complete_later() override;
  void let_go() override { messages_->forget(this); }

  const std::shared_ptr<Messages> messages_;
  Header header_;
  int peer_ = -1;
  std::chrono::steady_clock::time_point end_;  ///< of a send
  std::string what_;                           ///< of a send
  std::shared_ptr<Receive> receive_;
  std::shared_ptr<const std::vector<int>> ranks_;
};

}  // namespace dt::torch
