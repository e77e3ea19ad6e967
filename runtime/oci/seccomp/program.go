package seccomp

import (
	"fmt"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
)

const (
	maxInstructions = 4096 // the kernel's limit
	// reach is how far conditional jumps go here; the kernel's limit is 255.
	reach = 250
)

// label is the place of an instruction, counted from the end of the program.
type label int

// program is a filter under construction, from its last instruction to its first, so that the
// targets of every jump exist before the jump: classic BPF jumps forward only.
type program struct {
	code    []unix.SockFilter
	returns map[uint32]label
}

func newProgram() *program { return &program{returns: map[uint32]label{}} }

func (p *program) put(code uint16, k uint32) label {
	p.code = append(p.code, unix.SockFilter{Code: code, K: k})
	return label(len(p.code) - 1)
}

// distance is how many instructions the next one would skip to get to the label.
func (p *program) distance(to label) int { return len(p.code) - int(to) - 1 }

// ret returns the place of an instruction in reach that ends the filter with the action.
func (p *program) ret(action uint32) label {
	at, ok := p.returns[action]
	if !ok || p.distance(at) > reach {
		at = p.put(unix.BPF_RET|unix.BPF_K, action)
		p.returns[action] = at
	}
	return at
}

// near returns a place in reach that leads to the label.
func (p *program) near(to label) label {
	if p.distance(to) <= reach {
		return to
	}
	return p.put(unix.BPF_JMP|unix.BPF_JA, uint32(p.distance(to)))
}

func (p *program) jump(comparison uint16, k uint32, yes, no label) label {
	yes, no = p.near(yes), p.near(no)
	at := p.put(unix.BPF_JMP|comparison|unix.BPF_K, k)
	p.code[at].Jt, p.code[at].Jf = uint8(int(at)-int(yes)-1), uint8(int(at)-int(no)-1)
	return at
}

// loadBefore loads the 32 bits at the offset and goes on at the label.
func (p *program) loadBefore(next label, offset uint32) label {
	if p.distance(next) > 0 {
		p.put(unix.BPF_JMP|unix.BPF_JA, uint32(p.distance(next)))
	}
	return p.put(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, offset)
}

// finish returns the program in the order of its instructions.
func (p *program) finish() ([]unix.SockFilter, error) {
	if len(p.code) > maxInstructions {
		return nil, fmt.Errorf("the profile takes %d instructions; the kernel's limit is %d",
			len(p.code), maxInstructions)
	}
	slices.Reverse(p.code)
	return p.code, nil
}

// span is a range of numbers, from the first up to the next span, that end the same way.
type span struct {
	first uint32
	rules []rule
	end   uint32
}

// decide finds the system call whose number is loaded by bisection, which takes some ten
// comparisons where a list would take hundreds.
func (p *program) decide(c calls) label {
	spans := []span{{first: 0, end: c.fallback}}
	add := func(s span) {
		last := &spans[len(spans)-1]
		switch {
		case len(s.rules) == 0 && len(last.rules) == 0 && s.end == last.end:
		case s.first == last.first:
			*last = s
		default:
			spans = append(spans, s)
		}
	}
	isNewer := false
	gap := func(first uint32) {
		if first >= c.beyond {
			isNewer = true
			add(span{first: first, end: c.newer})
			return
		}
		add(span{first: first, end: c.fallback})
	}
	for i, call := range c.list {
		if call.number >= c.beyond && !isNewer {
			gap(c.beyond)
		}
		add(span{first: call.number, rules: call.rules, end: call.action})
		if i+1 == len(c.list) || c.list[i+1].number > call.number+1 {
			gap(call.number + 1)
		}
	}
	if !isNewer {
		gap(c.beyond)
	}
	return p.bisect(spans)
}

func (p *program) bisect(spans []span) label {
	if len(spans) == 1 {
		return p.apply(spans[0])
	}
	middle := len(spans) / 2
	upper := p.bisect(spans[middle:])
	lower := p.bisect(spans[:middle])
	return p.jump(unix.BPF_JGE, spans[middle].first, upper, lower)
}

func (p *program) apply(s span) label {
	next := p.ret(s.end)
	for _, rule := range slices.Backward(s.rules) {
		matched := p.ret(rule.action)
		for _, condition := range slices.Backward(rule.conditions) {
			matched = p.condition(condition, rule.bits, matched, next)
		}
		next = matched
	}
	return next
}

var operators = []specs.LinuxSeccompOperator{
	specs.OpEqualTo, specs.OpNotEqual, specs.OpLessThan, specs.OpLessEqual, specs.OpGreaterThan,
	specs.OpGreaterEqual, specs.OpMaskedEqual,
}

// condition goes on at yes when the argument is as the condition says, else at no. Arguments are
// unsigned.
func (p *program) condition(c specs.LinuxSeccompArg, bits int, yes, no label) label {
	switch c.Op {
	case specs.OpNotEqual:
		return p.masked(c.Index, ^uint64(0), c.Value, bits, no, yes)
	case specs.OpMaskedEqual:
		return p.masked(c.Index, c.Value, c.ValueTwo, bits, yes, no)
	case specs.OpGreaterThan:
		return p.ordered(c.Index, unix.BPF_JGT, c.Value, bits, yes, no)
	case specs.OpGreaterEqual:
		return p.ordered(c.Index, unix.BPF_JGE, c.Value, bits, yes, no)
	case specs.OpLessEqual:
		return p.ordered(c.Index, unix.BPF_JGT, c.Value, bits, no, yes)
	case specs.OpLessThan:
		return p.ordered(c.Index, unix.BPF_JGE, c.Value, bits, no, yes)
	}
	return p.masked(c.Index, ^uint64(0), c.Value, bits, yes, no)
}

func (p *program) masked(index uint, mask, value uint64, bits int, yes, no label) label {
	lower := p.word(lowWord(index), uint32(mask), uint32(value), yes, no)
	if bits == 32 {
		return lower
	}
	return p.word(highWord(index), uint32(mask>>32), uint32(value>>32), lower, no)
}

// word compares the masked 32 bits at the offset.
func (p *program) word(offset, mask, value uint32, yes, no label) label {
	at := p.jump(unix.BPF_JEQ, value, yes, no)
	if mask != ^uint32(0) {
		at = p.put(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, mask)
	}
	return p.loadBefore(at, offset)
}

// ordered compares with JGT or JGE.
func (p *program) ordered(index uint, comparison uint16, value uint64, bits int,
	yes, no label) label {
	lower := p.loadBefore(p.jump(comparison, uint32(value), yes, no), lowWord(index))
	if bits == 32 {
		return lower
	}
	high := uint32(value >> 32)
	same := p.jump(unix.BPF_JEQ, high, lower, no)
	return p.loadBefore(p.jump(unix.BPF_JGT, high, yes, same), highWord(index))
}

// The architectures that this package supports are little-endian.

func lowWord(index uint) uint32  { return offsetArgs + 8*uint32(index) }
func highWord(index uint) uint32 { return lowWord(index) + 4 }
