package spares

import (
	"sync"
	"time"

	"sandbox.internal/server/lifecycle"
)

// run makes and removes spares, one at a time, until Close is called.
func (s *Spares) run() {
	defer close(s.closed)
	for {
		do, wait := s.due()
		if do != nil {
			do()
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-s.woken:
		case <-timer.C:
		case <-s.closing:
			timer.Stop()
			s.clear()
			return
		}
		timer.Stop()
	}
}

// due returns what is to be done now; nil when that is nothing, and for how long, unless something
// changes.
func (s *Spares) due() (do func(), wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.of.Clock()
	if s.isClosing() {
		return nil, spareAge
	}
	if now.Before(s.paused) {
		return nil, s.paused.Sub(now)
	}
	count, next := 0, now.Add(spareAge)
	for _, one := range s.all {
		switch age := now.Sub(one.since); {
		case one.state == spareEnding, one.state == spareFree && age >= spareAge:
			one.state = spareEnding
			return func() { s.remove(one) }, 0
		case one.state == spareFree:
			count++
			next = earlier(next, one.since.Add(spareAge))
		}
	}
	if count == s.of.Size || s.working > 0 { // the end of work wakes
		return nil, next.Sub(now)
	}
	if rested := s.rested.Add(spareRest); now.Before(rested) {
		return nil, rested.Sub(now)
	}
	one := &spare{record: s.of.Record(), state: spareMaking, since: now}
	s.all[one.record.Box] = one
	return func() { s.make(one) }, 0
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func (s *Spares) make(one *spare) {
	err := s.of.Start(one.record)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		one.state = spareEnding
		s.failed(err)
	case one.state == spareMaking: // and has not ended meanwhile
		one.state, one.since = spareFree, s.of.Clock()
	}
}

func (s *Spares) remove(one *spare) {
	err := s.of.Remove(one.record)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.failed(err)
		return
	}
	delete(s.all, one.record.Box)
}

// clear removes every spare that no sandbox has taken.
func (s *Spares) clear() {
	var left []lifecycle.Record
	s.mu.Lock()
	for _, one := range s.all {
		if one.state != spareTaken {
			left = append(left, one.record)
		}
	}
	s.mu.Unlock()
	var group sync.WaitGroup
	for _, record := range left {
		group.Go(func() {
			if err := s.of.Remove(record); err != nil {
				s.of.Log.Warn().Err(err).Msg("cannot remove a prepared network; removed at the next start of the service")
			}
		})
	}
	group.Wait()
}

// Close ends the work, and returns when no spare is left, or closePatience is over.
func (s *Spares) Close() {
	s.once.Do(func() { close(s.closing) })
	timer := time.AfterFunc(closePatience, s.of.GiveUp)
	<-s.closed
	timer.Stop()
}

func (s *Spares) isClosing() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}
