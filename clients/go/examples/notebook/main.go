// The notebook runs cells of Python that share their variables, and shows their results.
//
//	SANDBOX_URL=http://127.0.0.1:8080 SERVICE_API_KEY=... go run ./clients/go/examples/notebook IMAGE
//
// The image needs a Python kernel, as that of `scripts/images.sh python` has.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	sandbox "sandbox.internal/clients/go"
)

// cells see the variables of those before them.
var cells = []string{
	"numbers = [n * n for n in range(5)]",
	"print(numbers)\nsum(numbers)",
	"numbers[99]",
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: notebook IMAGE")
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
	box, err := client.Create(ctx, &sandbox.CreateOptions{Image: image})
	if box != nil {
		defer func() { _ = box.Delete(context.WithoutCancel(ctx)) }()
	}
	if err != nil {
		return err
	}
	kernel, err := box.Code.CreateContext(ctx, "python")
	if err != nil {
		return err
	}
	for _, cell := range cells {
		ran, err := box.Code.Run(ctx, cell, &sandbox.CodeOptions{Context: kernel.ID})
		if err != nil {
			return err
		}
		fmt.Printf("[%d] %s", ran.Count, ran.Stdout)
		for _, result := range ran.Results {
			fmt.Print(result.Text())
		}
		if ran.Error != nil {
			fmt.Print(ran.Error)
		}
		fmt.Println()
	}
	return nil
}
