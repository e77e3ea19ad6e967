package keeper

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

// container is a container that the keeper watches.
type container struct {
	id, exitFile, endFile string
	output                output

	// launched is closed when the launch or the adoption is over. Then process and failure are what
	// came of it; detach has happened or follows.
	launched chan struct{}
	process  Process
	failure  *RuntimeError

	mu    sync.Mutex
	pidfd int  // of a container that is not a child of this process, -1 otherwise
	over  bool // it has ended, or is forgotten
	end   *End // its end is recorded
}

func (k *keeper) newContainer(w *Watched) *container {
	limit := w.LogBytes
	if limit <= 0 {
		limit = engine.DefaultLogBytes
	}
	return &container{
		id: w.ID, exitFile: w.ExitFile, endFile: w.EndFile, launched: make(chan struct{}), pidfd: -1,
		output: output{poller: k.poller, reaper: k.reaper, fifo: -1, writer: -1, log: newLogFile(w.Log, limit)},
	}
}

// share returns descriptors of the process and the FIFO for a client, which are the same open files
// as those of the keeper; none of a container that has ended.
func (c *container) share() []int {
	if c.failure != nil || c.ended() != nil {
		return nil
	}
	pidfd, err := c.process.Open()
	if err != nil {
		return nil
	}
	fifo := c.output.duplicate()
	if fifo < 0 {
		return []int{pidfd}
	}
	return []int{pidfd, fifo}
}

// finish records the end of a container, once.
func (k *keeper) finish(c *container, end End) {
	<-c.launched
	c.mu.Lock()
	first := !c.over
	c.over = true
	c.mu.Unlock()
	if !first || c.failure != nil {
		return
	}
	k.beginWork() // also when the process is about to end: the status of a child is known nowhere else
	defer k.endWork()
	c.closeProcess(k.poller)
	c.output.finish()
	if err := writeEnd(c.endFile, end); err != nil {
		k.report("container " + c.id + ": " + err.Error())
	}
	c.mu.Lock()
	c.end = &end
	c.mu.Unlock()
	k.broadcast(response{Container: c.id, End: &end})
}

// ended returns how the container ended, nil as long as that is not recorded.
func (c *container) ended() *End {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end
}

// closeProcess closes the pidfd.
func (c *container) closeProcess(p *poller) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.remove(c.pidfd)
	closeAll(c.pidfd)
	c.pidfd = -1
}

// register adds a container that another keeper has started, for adopt. One that is watched already
// is returned as it is.
func (k *keeper) register(w *Watched, p Process) (c *container, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c = k.containers[w.ID]; c != nil {
		return c, true
	}
	c = k.newContainer(w)
	c.process = p
	k.containers[w.ID] = c
	return c, false
}

// adopt watches a container that was registered. files are its pidfd and its FIFO, as far as the
// client has them.
func (k *keeper) adopt(c *container, fifoPath string, files []int) error {
	defer close(c.launched)
	if end, err := ReadEnd(c.endFile); err == nil {
		k.reaper.closeFIFOs(files...)
		c.mu.Lock()
		c.over, c.end = true, &end
		c.mu.Unlock()
		return nil
	}
	pidfd := -1
	if len(files) > 0 {
		pidfd = files[0]
	} else {
		var err error
		if pidfd, err = c.process.Open(); err != nil && !errors.Is(err, ErrGone) {
			k.drop(c)
			return err
		}
	}
	if len(files) > 1 {
		c.output.attach(files[1], -1)
		k.reportOf(c, c.output.watch())
	} else {
		within(openPatience, func() { k.reportOf(c, c.output.open(fifoPath)) })
	}
	if pidfd < 0 {
		go k.finish(c, exitFileEnd(c.exitFile, time.Now()))
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pidfd = pidfd
	k.reportOf(c, k.poller.add(pidfd, func() { k.adoptedEnded(c, pidfd) }))
	return nil
}

// reportOf reports an error about an adopted container, of which there is still the rest to record.
func (k *keeper) reportOf(c *container, err error) {
	if err != nil {
		k.report("container " + c.id + ": " + err.Error())
	}
}

// adoptedEnded is called when the process of a pidfd has ended. Its parent is another process,
// which may or may not have waited for it.
func (k *keeper) adoptedEnded(c *container, pidfd int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pidfd != pidfd {
		return // released meanwhile
	}
	k.poller.remove(pidfd)
	go k.finish(c, k.adoptedEnd(c, pidfd))
}

func (k *keeper) adoptedEnd(c *container, pidfd int) End {
	now := time.Now()
	// Either the status is there because the process was waited for, or it is a zombie that has it;
	// between the two looks it can be waited for.
	for range 2 {
		info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
		if err := unix.IoctlPidfdInfo(pidfd, &info); err == nil && info.Mask&unix.PIDFD_INFO_EXIT != 0 {
			return newEnd(unix.WaitStatus(info.Exit_code), now)
		}
		if found, err := readStat(c.process.PID); k.seesStatus && err == nil && found.start == c.process.StartTime && found.ended() {
			return newEnd(found.status, now)
		}
	}
	return exitFileEnd(c.exitFile, now)
}

// drop removes a container from those that are watched.
func (k *keeper) drop(c *container) {
	k.mu.Lock()
	if k.containers[c.id] == c {
		delete(k.containers, c.id)
	}
	k.mu.Unlock()
}

// forget stops watching a container. One that is being launched is waited for, by everything that
// asks for it.
func (k *keeper) forget(id string) {
	k.mu.Lock()
	c := k.containers[id]
	k.mu.Unlock()
	if c == nil {
		return
	}
	<-c.launched
	k.drop(c)
	c.mu.Lock()
	first := !c.over
	c.over = true
	c.mu.Unlock()
	if first {
		c.closeProcess(k.poller)
	}
	c.output.close()
}
