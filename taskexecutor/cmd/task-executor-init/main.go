// Command task-executor-init is the first process of a task-executor's container. It keeps the
// container alive, and the tasks with it, while the task-executor is started again after it ended.
// Processes whose task-executor and shim have ended become its children, which is how the next
// task-executor finds them.
//
//	task-executor-init PROGRAM [ARGUMENT...]
//
// When the task-executor ends before it ever answered, task-executor-init ends with its status:
// what cannot work is seen at once.
package main

import (
	"os"
	"time"

	"sandbox.internal/internal/supervisor"
)

// name is what this program is called in its messages.
const name = "task-executor-init"

func main() {
	supervisor.Exit(name, func() int {
		return supervisor.Run(supervisor.Options{
			Name:         name,
			Program:      os.Args[1:],
			Prefix:       supervisor.PrefixTaskExecutor,
			LongestPause: time.Second,
			Meanwhile:    "tasks go on",
			Deliver:      true, // tasks are ended with grace, which takes an executor
		})
	})
}
