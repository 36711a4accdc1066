console.log(process.env.USER_MESSAGE)
