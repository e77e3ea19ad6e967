package process

import (
	"runtime"
	"sync"
)

// ReserveThreads bounds the processors that this process uses, and makes as many threads as those
// may need, and spare ones for system calls that block at the same time.
//
// A process whose Go runtime is refused a thread ends at once, and a fork bomb in the sandbox takes
// every thread that there is: threads count as processes for the sandbox's limit. The runtime never
// gives a thread back, so those that a process may come to need are made at its start, while there
// is room for them. File operations and the start of a command block a thread; network connections,
// pipes and running commands do not. An idle thread costs about 15 KiB.
func ReserveThreads(processors, spare int) {
	runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), processors))
	count := runtime.GOMAXPROCS(0) + spare
	var here, gone sync.WaitGroup
	here.Add(count)
	for range count {
		gone.Go(func() {
			// A goroutine that keeps its thread while it waits sends the next one to another.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			here.Done()
			here.Wait()
		})
	}
	gone.Wait()
}
