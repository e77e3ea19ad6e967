package proxy

import "time"

// Kept returns how many connections wait for a request.
func (p *Proxy) Kept() int {
	pool := p.transport.(*keeping).kept
	pool.mu.Lock()
	defer pool.mu.Unlock()
	return pool.held
}

// Later does to the connections that wait what happens to them after a time.
func (p *Proxy) Later(after time.Duration) { p.transport.(*keeping).kept.expire(time.Now().Add(after)) }

// Bounds of what a proxy keeps.
const (
	KeptPerServer   = keptPerServer
	KeptFor         = keptFor
	MaxAnswerHeader = maxAnswerHeader
)
