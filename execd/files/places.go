package files

import (
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// places has a lock for each path at which content is put just now. There is not one lock for all
// of them, since whatever runs in the sandbox can make the last step of one take any time: by a
// file system of its own, for example.
type places struct {
	mu   sync.Mutex
	held map[place]*holders
}

// place is a name in a directory, whatever links and mounts lead there.
type place struct {
	dev, ino uint64
	name     string
}

type holders struct {
	sync.Mutex
	count int // with those that wait
}

// lock waits until no other caller has the path. Its directory must exist.
func (p *places) lock(path string) (unlock func(), err error) {
	var directory unix.Stat_t
	if err := unix.Stat(filepath.Dir(path), &directory); err != nil {
		return nil, classify(path, err)
	}
	key := place{directory.Dev, directory.Ino, filepath.Base(path)}
	p.mu.Lock()
	if p.held == nil {
		p.held = make(map[place]*holders)
	}
	h := p.held[key]
	if h == nil {
		h = &holders{}
		p.held[key] = h
	}
	h.count++
	p.mu.Unlock()
	h.Lock()
	return func() {
		h.Unlock()
		p.mu.Lock()
		defer p.mu.Unlock()
		if h.count--; h.count == 0 {
			delete(p.held, key)
		}
	}, nil
}
