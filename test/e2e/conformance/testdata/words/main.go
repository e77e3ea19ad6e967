// Command words is the program of an image: it prints its arguments, and ends when it is to.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fmt.Printf("%q\n", os.Args[1:])
	<-ctx.Done()
}
