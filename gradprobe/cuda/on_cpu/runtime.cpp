// Runs a CUDA kernel on the CPU: one fiber a thread, one block after another, every access of memory watched.
//
// A kernel is compiled with -fsanitize=thread, which calls a function before each access, and linked with the functions
// below in the place of the sanitizer's own. Each granule of memory keeps its two latest writers and its two latest
// readers; an access races with one of another block, or with one of another thread since the last barrier, unless both
// only read or both are atomic. Two of each are enough to miss none, as blocks run one after another: where one of
// another block is kept, any access of this block races with it; else those kept are the latest of two threads.
#include "runtime.h"

#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <random>
#include <vector>

namespace {

constexpr size_t STACK = 256 << 10, GUARD = 4096;
constexpr uint32_t WARP = 32;
constexpr uint64_t NONE = ~0ull;

struct Event {
    uint32_t block_from_1, epoch;  // 0: none as yet, as fresh memory has it
    uint16_t thread, warp_epoch;
    uint32_t place;  // 27 bits of pc, 1 whether atomic, 4 of which bytes
    bool is_set() const { return block_from_1 != 0; }
    uint32_t block() const { return block_from_1 - 1; }
    bool is_atomic() const { return place >> 27 & 1; }
    uint32_t bytes() const { return place >> 28; }
    uint64_t pc() const { return place & ((1u << 27) - 1); }
};

struct Cell {
    // The latest, and the latest of another thread; one of another block stays.
    Event writes[2], reads[2];
};

enum State { READY, AT_BARRIER, AT_WARP, ENDED };

struct Fiber {
    char* stack = nullptr;
    void* pointer = nullptr;  // of the stack, while it does not run
    ucontext_t context;
    State state = READY;
    uint64_t pc = 0;
    int kind = 0, predicate = 0;
    uint32_t mask = 0;
    uint64_t value = 0, result = 0;
    gp_index index{};
};

struct Shadow {
    Cell* cells = nullptr;
    size_t count = 0;
};

struct Machine {
    gp_launch* launch = nullptr;
    std::vector<Fiber> fibers;
    std::vector<Shadow> shadows;
    std::vector<uint16_t> warp_epochs;
    char* arena = nullptr;
    size_t arena_bytes = 0;
    size_t threads = 0;
    uint32_t current = 0;
    uint32_t block = 0, epoch = 0;
    gp_index block_index{};
    int latest = 0, before_that = 0;  // the regions of the last accesses
    bool is_running = false, is_fenced = false, is_stopped = false;
    void* own = nullptr;
    ucontext_t own_context;
    int reduced = 0;
};

Machine m;

#if defined(__x86_64__)
extern "C" void gp_switch(void** from, void* to);
asm(R"(
.text
.globl gp_switch
.type gp_switch,@function
gp_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size gp_switch,.-gp_switch
)");
void to_fiber(Fiber& fiber) { gp_switch(&m.own, fiber.pointer); }
void to_scheduler(Fiber& fiber) { gp_switch(&fiber.pointer, m.own); }
#else
void to_fiber(Fiber& fiber) { swapcontext(&m.own_context, &fiber.context); }
void to_scheduler(Fiber& fiber) { swapcontext(&fiber.context, &m.own_context); }
#endif

void body() {
    m.launch->kernel(m.launch->arguments);
    Fiber& fiber = m.fibers[m.current];
    fiber.state = ENDED;
    to_scheduler(fiber);
    __builtin_trap();
}

void prepare(Fiber& fiber) {
    fiber.state = READY;
#if defined(__x86_64__)
    void** top = reinterpret_cast<void**>(fiber.stack + STACK);
    *--top = nullptr;  // where body would return to; and its stack is aligned as after a call
    *--top = reinterpret_cast<void*>(body);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    fiber.pointer = top;
#else
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, body, 0);
#endif
}

bool make_stacks(size_t threads) {
    size_t bytes = threads * (STACK + GUARD);
    if (bytes > m.arena_bytes) {
        if (m.arena) munmap(m.arena, m.arena_bytes);
        void* got = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        m.arena = got == MAP_FAILED ? nullptr : static_cast<char*>(got);
        m.arena_bytes = m.arena ? bytes : 0;
        if (!m.arena) return false;
        for (size_t i = 0; i < threads; ++i) mprotect(m.arena + i * (STACK + GUARD), GUARD, PROT_NONE);
    }
    m.fibers.resize(threads);
    for (size_t i = 0; i < threads; ++i) m.fibers[i].stack = m.arena + i * (STACK + GUARD) + GUARD;
    return true;
}

void site(gp_site& out, uint64_t pc, uint32_t thread, uint32_t block, int access) {
    const gp_launch& l = *m.launch;
    out.pc = pc;
    out.access = access;
    out.thread[0] = thread % l.block[0];
    out.thread[1] = thread / l.block[0] % l.block[1];
    out.thread[2] = thread / l.block[0] / l.block[1];
    out.block[0] = block % l.grid[0];
    out.block[1] = block / l.grid[0] % l.grid[1];
    out.block[2] = block / l.grid[0] / l.grid[1];
}

// What is found again at the same two places of the source in the same array is counted, not told again.
void found(int kind, int region, int array, int64_t offset, int bytes, const gp_site& now, const gp_site& before) {
    gp_launch& l = *m.launch;
    for (int i = 0; i < l.n_findings; ++i) {
        gp_finding& f = l.findings[i];
        if (f.kind == kind && f.region == region && f.array == array && f.now.pc == now.pc && f.before.pc == before.pc) {
            ++f.count;
            return;
        }
    }
    if (l.n_findings < l.max_findings)
        l.findings[l.n_findings++] = gp_finding{kind, region, array, bytes, offset, now, before, 1};
}

uint64_t offset_of(void* pc) { return reinterpret_cast<uint64_t>(pc) - m.launch->library; }

[[noreturn]] void leave() {
    m.is_stopped = true;
    Fiber& fiber = m.fibers[m.current];
    fiber.state = ENDED;
    to_scheduler(fiber);
    __builtin_trap();
}

bool is_in(const gp_region& region, uint64_t address, int bytes) {
    return address >= region.base && address + bytes <= region.base + region.bytes;
}

int region_of(uint64_t address, int bytes) {
    const gp_launch& l = *m.launch;
    if (is_in(l.regions[m.latest], address, bytes)) return m.latest;
    if (is_in(l.regions[m.before_that], address, bytes)) {
        std::swap(m.latest, m.before_that);
        return m.latest;
    }
    for (int i = 0; i < l.n_regions; ++i)
        if (is_in(l.regions[i], address, bytes)) {
            m.before_that = m.latest;
            return m.latest = i;
        }
    return -1;
}

int nearest(uint64_t address) {
    const gp_launch& l = *m.launch;
    int best = -1;
    uint64_t least = NONE;
    for (int i = 0; i < l.n_regions; ++i) {
        const gp_region& r = l.regions[i];
        if (r.first <= 0 && !r.owners) continue;
        uint64_t away = address < r.base ? r.base - address : address - r.base;
        away = address >= r.base && address < r.base + r.bytes ? 0 : std::min(away, address - (r.base + r.bytes));
        if (away < least) least = away, best = i;
    }
    return best;
}

inline bool ordered(const Event& e, uint32_t thread, bool is_shared) {
    if (e.block() != m.block) return is_shared || m.is_fenced;  // a block has shared memory of its own
    if (e.epoch != m.epoch || e.thread == thread) return true;
    return e.thread / WARP == thread / WARP && e.warp_epoch != m.warp_epochs[thread / WARP];
}

inline void keep(Event (&events)[2], const Event& now) {
    Event& latest = events[0];
    if (!latest.is_set() || (latest.block_from_1 == now.block_from_1 && latest.thread == now.thread)) {
        uint32_t same = latest.is_set() && latest.epoch == now.epoch ? latest.place & 0xf0000000u : 0;
        latest = now;
        latest.place |= same;
        return;
    }
    bool kept_is_foreign = events[1].is_set() && events[1].block_from_1 != now.block_from_1;
    if (latest.block_from_1 != now.block_from_1 || !kept_is_foreign) events[1] = latest;
    latest = now;
}

inline void judge(const Event& before, int how_before, const Event& now, int how, int region, int array, int64_t offset,
           int bytes, bool is_shared) {
    if (!before.is_set() || ordered(before, now.thread, is_shared)) return;
    if (!(before.bytes() & now.bytes()) || (how == GP_ATOMIC && before.is_atomic())) return;
    gp_site one, other;
    site(one, now.pc(), now.thread, now.block(), how);
    site(other, before.pc(), before.thread, before.block(), before.is_atomic() ? int(GP_ATOMIC) : how_before);
    found(GP_RACE, region, array, offset, bytes, one, other);
}

void outside(uint64_t address, int bytes, int how, void* pc, int region, bool stays) {
    gp_site now, none{};
    none.pc = NONE;
    site(now, offset_of(pc), m.current, m.block, how);
    int64_t base = region < 0 ? 0 : int64_t(m.launch->regions[region].base);
    found(GP_OUTSIDE, region, 0, int64_t(address) - base, bytes, now, none);
    if (stays) return;
    snprintf(m.launch->message, sizeof m.launch->message, "stopped before an access of memory that is nobody's");
    leave();
}

void touch(const void* pointer, int bytes, int how, void* pc) {
    if (!m.is_running) return;
    uint64_t address = reinterpret_cast<uint64_t>(pointer);
    if (address - reinterpret_cast<uint64_t>(m.arena) < m.arena_bytes) return;
    int at = region_of(address, bytes);
    if (at < 0) return outside(address, bytes, how, pc, nearest(address), false);
    gp_region& r = m.launch->regions[at];
    if (!r.owners && !r.first) return;
    if (!r.owners && r.first < 0) return outside(address, bytes, how, pc, at, true);
    uint64_t offset = address - r.base;
    uint32_t place = uint32_t(offset_of(pc)) & ((1u << 27) - 1);
    Event now{};
    now.block_from_1 = m.block + 1;
    now.epoch = m.epoch;
    now.thread = uint16_t(m.current);
    now.warp_epoch = m.warp_epochs[m.current / WARP];
    Cell* cells = m.shadows[at].cells;
    int shift = __builtin_ctz(r.granule);
    for (uint64_t first = offset; first < offset + bytes;) {
        uint64_t granule = first >> shift, start = granule << shift;
        uint64_t last = std::min(offset + bytes, start + r.granule);
        int array = r.owners ? r.owners[granule] : r.first;
        if (!array) return outside(address, bytes, how, pc, at, true);
        uint32_t mask = 15;
        if (r.granule <= 4 && last - first < uint64_t(r.granule)) mask = ((1u << (last - first)) - 1) << (first - start);
        now.place = place | uint32_t(how == GP_ATOMIC) << 27 | mask << 28;
        Cell& cell = cells[granule];
        bool has_value = r.is_shared ? cell.writes[0].is_set() && cell.writes[0].block() == m.block
                                     : !r.written || r.written[granule];
        if (how != GP_WRITE && !has_value) {
            gp_site one, none{};
            none.pc = NONE;
            site(one, place, m.current, m.block, how);
            found(GP_UNWRITTEN, at, array, int64_t(start), r.granule, one, none);
        }
        for (const Event& before : cell.writes)
            judge(before, GP_WRITE, now, how, at, array, int64_t(start), r.granule, r.is_shared);
        if (how != GP_READ) {
            for (const Event& before : cell.reads)
                judge(before, GP_READ, now, how, at, array, int64_t(start), r.granule, r.is_shared);
            keep(cell.writes, now);
            if (r.written) r.written[granule] = 1;
        } else {
            keep(cell.reads, now);
        }
        first = last;
    }
}

bool make_shadows() {
    gp_launch& l = *m.launch;
    m.shadows.assign(l.n_regions, {});
    for (int i = 0; i < l.n_regions; ++i) {
        const gp_region& r = l.regions[i];
        if (!r.owners && r.first <= 0) continue;
        size_t count = r.bytes / r.granule + 1;
        void* got = mmap(nullptr, count * sizeof(Cell), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (got == MAP_FAILED) return false;
        m.shadows[i] = {static_cast<Cell*>(got), count};
    }
    return true;
}

void drop_shadows() {
    for (Shadow& shadow : m.shadows)
        if (shadow.cells) munmap(shadow.cells, shadow.count * sizeof(Cell));
    m.shadows.clear();
}

int fail(const char* words) {
    snprintf(m.launch->message, sizeof m.launch->message, "%s", words);
    return GP_STOPPED;
}

// The lanes of a warp that meet: all that their mask names, at one place.
bool release_warps() {
    bool any = false;
    for (size_t first = 0; first < m.threads; first += WARP) {
        size_t end = std::min(first + WARP, m.threads);
        for (size_t i = first; i < end; ++i) {
            Fiber& one = m.fibers[i];
            if (one.state != AT_WARP) continue;
            bool met = true;
            for (size_t lane = first; lane < end; ++lane) {
                Fiber& other = m.fibers[lane];
                if (one.mask >> (lane - first) & 1)
                    met &= other.state == AT_WARP && other.mask == one.mask && other.kind == one.kind;
            }
            if (!met) continue;
            uint32_t votes = 0;
            uint32_t mask = one.mask;
            for (size_t lane = first; lane < end; ++lane)
                if (mask >> (lane - first) & 1) votes |= uint32_t(m.fibers[lane].predicate != 0) << (lane - first);
            if (one.kind == 1) ++m.warp_epochs[first / WARP];
            for (size_t lane = first; lane < end; ++lane) {
                Fiber& other = m.fibers[lane];
                if (!(mask >> (lane - first) & 1)) continue;
                size_t source = first + other.result;
                other.result = other.kind == 2 ? votes : source < end ? m.fibers[source].value : other.value;
                other.state = READY;
            }
            any = true;
        }
    }
    return any;
}

// Threads wait at two barriers at once; where both are one line, the compiler made two of it.
void divergent(const Fiber& fiber) {
    gp_site one, other;
    site(one, m.fibers[0].pc, 0, m.block, AT_BARRIER);
    site(other, fiber.pc, uint32_t(&fiber - m.fibers.data()), m.block, AT_BARRIER);
    found(GP_BARRIER, -1, 0, 0, int(m.threads), one, other);
}

// Whether the block goes on; false where some wait for what cannot come.
bool release() {
    bool any = release_warps();
    size_t waiting = 0, ended = 0, ready = 0;
    for (Fiber& fiber : m.fibers) {
        waiting += fiber.state == AT_BARRIER;
        ended += fiber.state == ENDED;
        ready += fiber.state == READY;
    }
    if (waiting < m.threads) return any || ready || ended == m.threads;
    for (Fiber& fiber : m.fibers)
        if (fiber.pc != m.fibers[0].pc) {
            divergent(fiber);
            break;
        }
    int count = 0;
    for (Fiber& fiber : m.fibers) count += fiber.predicate != 0;
    for (Fiber& fiber : m.fibers) {
        fiber.result = fiber.kind == 1 ? count : fiber.kind == 2 ? count == int(m.threads) : count > 0;
        fiber.state = READY;
    }
    ++m.epoch;
    return true;
}

// Where threads of a block stand that can never go on: the first, and the first that stands elsewhere.
void deadlock() {
    gp_site one{}, other{};
    one.pc = other.pc = NONE;
    int64_t waiting = 0;
    size_t first = m.threads;
    for (size_t i = 0; i < m.threads; ++i) {
        if (m.fibers[i].state == ENDED) continue;
        if (first == m.threads) first = i, site(one, m.fibers[i].pc, i, m.block, m.fibers[i].state);
        waiting += m.fibers[i].state == m.fibers[first].state && m.fibers[i].pc == m.fibers[first].pc;
    }
    for (size_t i = 0; i < m.threads && first < m.threads; ++i) {
        const Fiber& fiber = m.fibers[i];
        bool elsewhere = fiber.state != m.fibers[first].state || fiber.pc != m.fibers[first].pc;
        if (!elsewhere) continue;
        site(other, fiber.state == ENDED ? NONE : fiber.pc, i, m.block, fiber.state);
        break;
    }
    gp_launch& l = *m.launch;
    int bytes = int(m.threads);
    if (l.n_findings == l.max_findings) --l.n_findings;
    l.findings[l.n_findings++] = gp_finding{GP_BARRIER, -1, 0, bytes, 0, one, other, waiting};
    snprintf(l.message, sizeof l.message, "some threads of a block wait for others that never come");
}

void run_block(const std::vector<uint32_t>& order) {
    for (Fiber& fiber : m.fibers) prepare(fiber);
    std::fill(m.warp_epochs.begin(), m.warp_epochs.end(), 0);
    m.epoch = 0;
    for (int i = 0; i < m.launch->n_regions; ++i)
        if (m.launch->regions[i].is_shared)
            memset(reinterpret_cast<void*>(m.launch->regions[i].base), 0xff, m.launch->regions[i].bytes);
    while (!m.is_stopped) {
        size_t ended = 0;
        for (uint32_t i : order) {
            Fiber& fiber = m.fibers[i];
            if (fiber.state == READY) {
                m.current = i;
                m.is_running = true;
                to_fiber(fiber);
                m.is_running = false;
                if (m.is_stopped) return;
            }
            ended += fiber.state == ENDED;
        }
        if (ended == m.threads) return;
        if (release()) continue;
        deadlock();
        m.is_stopped = true;
    }
}

uint64_t waits(State state, int kind, uint64_t pc) {
    Fiber& fiber = m.fibers[m.current];
    fiber.state = state;
    fiber.kind = kind;
    fiber.pc = pc;
    to_scheduler(fiber);
    return m.fibers[m.current].result;
}

// What the loader knows of this library.
struct Loaded {
    uint64_t base = 0, bytes = 0, shared = 0, shared_bytes = 0;
};

thread_local volatile char touched_to_be_there;

int look(dl_phdr_info* info, size_t, void* out) {
    uint64_t own = reinterpret_cast<uint64_t>(&m), end = 0, shared = 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& part = info->dlpi_phdr[i];
        if (part.p_type == PT_LOAD) end = std::max<uint64_t>(end, part.p_vaddr + part.p_memsz);
        if (part.p_type == PT_TLS) shared = part.p_memsz;
    }
    if (own < info->dlpi_addr || own >= info->dlpi_addr + end) return 0;
    *static_cast<Loaded*>(out) = {info->dlpi_addr, end, reinterpret_cast<uint64_t>(info->dlpi_tls_data), shared};
    return 1;
}

Loaded loaded() {
    touched_to_be_there = 1;
    Loaded found;
    dl_iterate_phdr(look, &found);
    return found;
}

}  // namespace

extern "C" {

uint64_t gp_shared_base() { return loaded().shared; }
uint64_t gp_shared_bytes() { return loaded().shared_bytes; }
uint64_t gp_library_base() { return loaded().base; }
uint64_t gp_library_bytes() { return loaded().bytes; }

int gp_run(gp_launch* launch) {
    m.launch = launch;
    m.threads = size_t(launch->block[0]) * launch->block[1] * launch->block[2];
    m.is_stopped = m.is_fenced = false;
    m.latest = m.before_that = 0;
    launch->n_findings = 0;
    launch->message[0] = 0;
    if (!make_stacks(m.threads)) return fail("there is no memory for the stacks of its threads");
    if (!make_shadows()) return drop_shadows(), fail("there is no memory to keep account of its accesses");
    m.warp_epochs.assign((m.threads + WARP - 1) / WARP, 0);
    uint32_t blocks = launch->grid[0] * launch->grid[1] * launch->grid[2];
    std::vector<uint32_t> order(m.threads), turns(blocks);
    for (uint32_t i = 0; i < m.threads; ++i) {
        order[i] = i;
        m.fibers[i].index = {i % launch->block[0], i / launch->block[0] % launch->block[1],
                             i / launch->block[0] / launch->block[1]};
    }
    for (uint32_t i = 0; i < blocks; ++i) turns[i] = i;
    std::mt19937_64 random(launch->seed);
    if (launch->seed) std::shuffle(turns.begin(), turns.end(), random);
    for (uint32_t i = 0; i < blocks && !m.is_stopped; ++i) {
        m.block = turns[i];
        m.block_index = {m.block % launch->grid[0], m.block / launch->grid[0] % launch->grid[1],
                         m.block / launch->grid[0] / launch->grid[1]};
        if (launch->seed) std::shuffle(order.begin(), order.end(), random);
        run_block(order);
    }
    drop_shadows();
    return m.is_stopped ? GP_STOPPED : 0;
}

gp_index gp_thread_index() { return m.fibers[m.current].index; }
gp_index gp_block_index() { return m.block_index; }
gp_index gp_block_size() { return {m.launch->block[0], m.launch->block[1], m.launch->block[2]}; }
gp_index gp_grid_size() { return {m.launch->grid[0], m.launch->grid[1], m.launch->grid[2]}; }

int gp_barrier(int kind, int predicate) {
    m.fibers[m.current].predicate = predicate;
    return int(waits(AT_BARRIER, kind, offset_of(__builtin_return_address(0))));
}

void gp_warp_barrier(uint32_t mask) {
    m.fibers[m.current].mask = mask;
    waits(AT_WARP, 1, offset_of(__builtin_return_address(0)));
}

uint32_t gp_vote(uint32_t mask, int predicate) {
    m.fibers[m.current].mask = mask;
    m.fibers[m.current].predicate = predicate;
    return uint32_t(waits(AT_WARP, 2, offset_of(__builtin_return_address(0))));
}

// how: 0 from lane `source`, 1 from the lane xor it, 2 from that many above, 3 from that many below
uint64_t gp_exchange(uint32_t mask, uint64_t value, int source, int width, int how) {
    Fiber& fiber = m.fibers[m.current];
    int lane = int(m.current % WARP), first = lane & ~(width - 1), from = lane;
    if (how == 0) from = first + (source & (width - 1));
    if (how == 1) from = (lane ^ source) < first + width ? lane ^ source : lane;
    if (how == 2) from = lane + source < first + width ? lane + source : lane;
    if (how == 3) from = lane - source >= first ? lane - source : lane;
    fiber.mask = mask;
    fiber.value = value;
    fiber.result = uint64_t(from);
    return waits(AT_WARP, 3 + how, offset_of(__builtin_return_address(0)));
}

uint32_t gp_active_mask() {
    uint32_t mask = 0, first = m.current / WARP * WARP;
    for (uint32_t lane = 0; lane < WARP && first + lane < m.threads; ++lane)
        mask |= uint32_t(m.fibers[first + lane].state != ENDED) << lane;
    return mask;
}

// The lanes that this warp has at all: the last one of a block may have fewer than 32.
uint32_t gp_whole_warp() {
    size_t lanes = std::min<size_t>(WARP, m.threads - m.current / WARP * WARP);
    return lanes == WARP ? ~0u : (1u << lanes) - 1;
}

void gp_touch_atomic(const void* address, int bytes) {
    touch(address, bytes, GP_ATOMIC, __builtin_return_address(0));
}
void gp_copy(void* to, const void* from, uint64_t bytes) { memcpy(to, from, bytes); }
void gp_fence() { m.is_fenced = true; }
void gp_yield() {
    Fiber& fiber = m.fibers[m.current];
    to_scheduler(fiber);
}
void gp_fail(const char* words) {
    snprintf(m.launch->message, sizeof m.launch->message, "%s", words);
    leave();
}

// What g++ calls before each access.
#define HOOKS(bytes)                                                                                             \
    void __tsan_read##bytes(void* a) { touch(a, bytes, GP_READ, __builtin_return_address(0)); }                  \
    void __tsan_write##bytes(void* a) { touch(a, bytes, GP_WRITE, __builtin_return_address(0)); }                \
    void __tsan_unaligned_read##bytes(void* a) { touch(a, bytes, GP_READ, __builtin_return_address(0)); }        \
    void __tsan_unaligned_write##bytes(void* a) { touch(a, bytes, GP_WRITE, __builtin_return_address(0)); }      \
    void __tsan_volatile_read##bytes(void* a) { touch(a, bytes, GP_READ, __builtin_return_address(0)); }         \
    void __tsan_volatile_write##bytes(void* a) { touch(a, bytes, GP_WRITE, __builtin_return_address(0)); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void* a, uint64_t n) { touch(a, int(n), GP_READ, __builtin_return_address(0)); }
void __tsan_write_range(void* a, uint64_t n) { touch(a, int(n), GP_WRITE, __builtin_return_address(0)); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
