from headswap.cli import main

main()
