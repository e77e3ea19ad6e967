package oci

import (
	"cmp"
	"slices"
	"sync"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/oci/cgroup"
)

// processors gives each container whose limit of CPU time needs fewer processors than the machine
// has as many as it needs, those with the least limits of others on them. A program that counts the
// processors that it may run on finds the limit then, and makes no more threads than can run.
//
// The quota stays what limits the container. When the limits together exceed the machine,
// containers share processors, and the kernel does not move one to a processor that is idle.
type processors struct {
	log zerolog.Logger

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

// newProcessors returns the processors of these numbers; without any, containers may use all.
func newProcessors(numbers []int, log zerolog.Logger) *processors {
	return &processors{log: log, numbers: numbers, load: map[int]int64{}, shares: map[string]share{}}
}

// processorsOf is how many processors a limit needs.
func processorsOf(nanoCPUs int64) int { return int((nanoCPUs + 1e9 - 1) / 1e9) }

// take chooses processors for a container; nil when it needs no choice, because it may use all.
func (p *processors) take(id string, nanoCPUs int64) []int {
	count := processorsOf(nanoCPUs)
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

// adopt counts the processors of a container that was started by an earlier service.
func (p *processors) adopt(id string, numbers []int, nanoCPUs int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if nanoCPUs > 0 && len(numbers) > 0 && len(numbers) < len(p.numbers) {
		p.add(id, numbers, nanoCPUs)
	}
}

// add counts a share. The caller holds mu.
func (p *processors) add(id string, numbers []int, nanoCPUs int64) {
	p.drop(id)
	s := share{numbers: numbers, each: nanoCPUs / int64(len(numbers))}
	for _, number := range numbers {
		p.load[number] += s.each
	}
	p.shares[id] = s
}

// release gives back what the container has, if anything.
func (p *processors) release(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(id)
}

func (p *processors) drop(id string) {
	s := p.shares[id]
	for _, number := range s.numbers {
		p.load[number] -= s.each
	}
	delete(p.shares, id)
}

// confine gives the container of the group its processors. One that cannot be confined may use all:
// its quota limits it.
func (p *processors) confine(id string, group cgroup.Group, nanoCPUs int64) {
	numbers := p.take(id, nanoCPUs)
	if numbers == nil {
		return
	}
	if err := group.Confine(numbers); err != nil {
		p.release(id)
		p.log.Warn().Err(err).Str("container_id", id).Msg("cannot choose the processors of a container; it sees those of the machine")
	}
}
