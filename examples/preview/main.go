// The preview runs a web app in a sandbox and prints a link to it, which needs no key and ends with
// the sandbox, after half an hour. Press Enter to put what has changed in the directory into the
// sandbox; Ctrl-C ends both.
//
//	go run ./examples/preview [-image IMAGE] [FOLDER]
//
// FOLDER is an app that `python3 server.py` serves at port 8000; without one it is a small one of
// this example.
package main

import (
	"bufio"
	"context"
	"embed"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"os/signal"
	"path"
	"syscall"
	"time"

	sandbox "sandbox.internal/clients/go"
)

const (
	start = "exec python3 server.py"
	port  = 8000
	home  = "/srv/app" // the directory of the app in the sandbox
	life  = 30 * time.Minute
	// A link may not be good for longer than its sandbox, which is made first.
	linkLife = life - time.Minute
	// patience is how long the app may take to listen.
	patience = 2 * time.Minute
)

//go:embed app
var sample embed.FS

func main() {
	image := flag.String("image", "sandbox/base:dev", "image with Python 3")
	flag.Parse()
	app, err := fs.Sub(sample, "app")
	if directory := flag.Arg(0); directory != "" {
		app = os.DirFS(directory)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err == nil {
		err = run(ctx, *image, app)
	}
	if err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, image string, app fs.FS) error {
	client, err := sandbox.New(nil)
	if err != nil {
		return err
	}
	defer client.Close()
	box, err := client.Create(ctx, &sandbox.CreateOptions{Image: image, Timeout: life,
		Memory: "256Mi", Metadata: map[string]string{"name": "preview"}})
	if box != nil {
		defer func() { _ = box.Delete(context.WithoutCancel(ctx)) }()
	}
	if err != nil {
		return err
	}

	server, err := restart(ctx, box, nil, app)
	if err != nil {
		return err
	}
	link, err := box.SignedEndpoint(ctx, port, linkLife)
	if err != nil {
		return err
	}
	fmt.Println(link.URL)
	updates := lines(os.Stdin)
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, more := <-updates:
			if !more {
				updates = nil // the input has ended; the preview goes on
				continue
			}
			if server, err = restart(ctx, box, server, app); err != nil {
				return err
			}
			fmt.Println("updated")
		}
	}
}

// lines yields each line of the input when it comes. It ends with the program.
func lines(input io.Reader) <-chan string {
	found := make(chan string)
	go func() {
		defer close(found)
		for scanner := bufio.NewScanner(input); scanner.Scan(); {
			found <- scanner.Text()
		}
	}()
	return found
}

// restart puts the app into the sandbox, ends the server that runs if there is one, and returns
// another once it listens.
func restart(ctx context.Context, box *sandbox.Sandbox, old *sandbox.Command,
	app fs.FS) (*sandbox.Command, error) {
	files, err := read(app)
	if err != nil {
		return nil, err
	}
	if old != nil {
		if err := old.Interrupt(ctx); err != nil {
			return nil, err
		}
		if _, err := old.Wait(ctx, nil); err != nil {
			return nil, err
		}
	}
	if err := box.Files.WriteAll(ctx, files...); err != nil {
		return nil, err
	}
	// In the background it goes on when this program is no longer connected.
	server, err := box.Commands.Start(ctx, start, &sandbox.RunOptions{Cwd: home})
	if err != nil {
		return nil, err
	}
	return server, awaitPort(ctx, box, server)
}

// awaitPort returns when the server listens, and with an error when it has ended or takes too long.
func awaitPort(ctx context.Context, box *sandbox.Sandbox, server *sandbox.Command) error {
	ctx, stop := context.WithTimeoutCause(ctx, patience,
		fmt.Errorf("the app does not listen at port %d after %v", port, patience))
	defer stop()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	go func() {
		if result, err := server.Wait(ctx, nil); err == nil {
			fail(fmt.Errorf("the app has ended: %v: %q", result.Err(), result.Stderr))
		}
	}()
	err := box.WaitForPort(ctx, port)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// read returns the files of an app, with the paths that they get in the sandbox.
func read(app fs.FS) (files []sandbox.FileContent, err error) {
	err = fs.WalkDir(app, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := fs.ReadFile(app, name)
		files = append(files, sandbox.FileContent{Path: path.Join(home, name), Data: data})
		return err
	})
	return files, err
}
