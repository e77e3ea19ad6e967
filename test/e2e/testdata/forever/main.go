// Command forever is the only program of an image made from scratch: it says that it runs, and does
// so until SIGTERM.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	fmt.Println("forever runs")
	<-ended
}
