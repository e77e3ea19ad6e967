// The quickstart creates a sandbox, runs a command in it, moves a file in and out, and deletes it.
//
//	SANDBOX_URL=http://127.0.0.1:8080 SERVICE_API_KEY=... go run ./clients/go/examples/quickstart IMAGE
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	sandbox "sandbox.internal/clients/go"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: quickstart IMAGE")
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, image string) error {
	client, err := sandbox.New(nil)
	if err != nil {
		return err
	}
	defer client.Close()
	box, err := client.Create(ctx, &sandbox.CreateOptions{
		Image:    image,
		Memory:   "512Mi",
		Timeout:  5 * time.Minute,
		Metadata: map[string]string{"name": "quickstart"},
	})
	if box != nil {
		defer func() { _ = box.Delete(context.WithoutCancel(ctx)) }()
	}
	if err != nil {
		return err
	}

	if err := box.Files.WriteText(ctx, "/tmp/names", "Ada\nGrace\n", nil); err != nil {
		return err
	}
	result, err := box.Commands.Run(ctx,
		"while read -r name; do echo Hello, $name; done < /tmp/names",
		&sandbox.RunOptions{OnStdout: func(p []byte) { fmt.Printf("live: %s", p) }})
	if err != nil {
		return err
	}
	fmt.Printf("exit code %d\n", *result.ExitCode)

	if _, err := box.Commands.Run(ctx, "sort -r /tmp/names > /tmp/sorted", nil); err != nil {
		return err
	}
	text, err := box.Files.ReadText(ctx, "/tmp/sorted")
	if err != nil {
		return err
	}
	fmt.Print(text)
	return nil
}
