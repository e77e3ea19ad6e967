package limits

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Processors gives each container whose limit of CPU time needs fewer processors than the machine
// has as many as it needs, those with the least limits of others on them. A program that counts the
// processors that it may run on finds the limit then, and makes no more threads than can run.
//
// The quota stays what limits the container. When the limits together exceed the machine,
// containers share processors, and the kernel does not move one to a processor that is idle.
type Processors struct {
	mu      sync.Mutex
	numbers []int            // of those that containers may have; none where they are not confined
	load    map[int]int64    // what limits of containers have of each, in billionths
	shares  map[string]share // by container
}

// share is what a container has of processors: so much of each, in billionths.
type share struct {
	numbers []int
	each    int64
}

// NewProcessors returns the processors of these numbers; without any, containers may use all.
func NewProcessors(numbers []int) *Processors {
	return &Processors{numbers: numbers, load: map[int]int64{}, shares: map[string]share{}}
}

// CountOf is how many processors a limit needs.
func CountOf(nanoCPUs int64) int { return int((nanoCPUs + 1e9 - 1) / 1e9) }

// Use replaces the numbers of the processors that containers may have; those that have some keep
// them.
func (p *Processors) Use(numbers []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.numbers = numbers
}

// Take chooses processors for a container; nil when it needs no choice, because it may use all.
func (p *Processors) Take(id string, nanoCPUs int64) []int {
	count := CountOf(nanoCPUs)
	p.mu.Lock()
	defer p.mu.Unlock()
	if nanoCPUs <= 0 || count >= len(p.numbers) {
		return nil
	}
	chosen := slices.Clone(p.numbers)
	slices.SortStableFunc(chosen, func(a, b int) int { return cmp.Compare(p.load[a], p.load[b]) })
	chosen = slices.Clip(chosen[:count])
	slices.Sort(chosen)
	p.add(id, chosen, nanoCPUs)
	return chosen
}

// Adopt counts the processors of a container that was started by an earlier service.
func (p *Processors) Adopt(id string, numbers []int, nanoCPUs int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if nanoCPUs > 0 && len(numbers) > 0 && len(numbers) < len(p.numbers) {
		p.add(id, numbers, nanoCPUs)
	}
}

// Knows reports whether the container has a share.
func (p *Processors) Knows(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, known := p.shares[id]
	return known
}

// add counts a share. The caller holds mu.
func (p *Processors) add(id string, numbers []int, nanoCPUs int64) {
	p.drop(id)
	s := share{numbers: numbers, each: nanoCPUs / int64(len(numbers))}
	for _, number := range numbers {
		p.load[number] += s.each
	}
	p.shares[id] = s
}

// Release gives back what the container has, if anything.
func (p *Processors) Release(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(id)
}

func (p *Processors) drop(id string) {
	s := p.shares[id]
	for _, number := range s.numbers {
		p.load[number] -= s.each
	}
	delete(p.shares, id)
}

// FormatList writes numbers of processors as the kernel and Docker take them, such as "0,3".
func FormatList(numbers []int) string {
	list := make([]string, len(numbers))
	for i, number := range numbers {
		list[i] = strconv.Itoa(number)
	}
	return strings.Join(list, ",")
}

// ParseList parses a list of processors such as "0-3,6".
func ParseList(list string) (numbers []int, ok bool) {
	const most = 1 << 14 // more than Linux has
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		last := first
		if err == nil && isRange {
			last, err = strconv.Atoi(to)
		}
		if err != nil || first < 0 || last < first || last >= most || len(numbers) > most {
			return nil, false
		}
		for number := first; number <= last; number++ {
			numbers = append(numbers, number)
		}
	}
	return numbers, true
}
